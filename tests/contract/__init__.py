"""One contract, every engine."""
