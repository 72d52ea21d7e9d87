"""The core of the runtime. `tenax.Runtime` adds the extensions, and is called by every user interface.

The package imports nothing, because `tenax list` needs a small module of the package, and not the agent.
"""
