"""Matrix: an account on a homeserver, also in encrypted rooms."""
