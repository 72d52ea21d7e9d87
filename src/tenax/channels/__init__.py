"""Chat apps: the same conversations from Telegram, Matrix, Discord and webhooks.

`base.py` is the contract of a platform. Every platform is a package with a `Channel`. The rest of this package is the
same for all platforms: it stores what people write before the platform may forget it, and delivers what is stored.
"""
