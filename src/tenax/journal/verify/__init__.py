"""The proof of a store, and the rebuilding of derived rows."""
