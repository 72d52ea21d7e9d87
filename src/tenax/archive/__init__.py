"""Backups of a store, and moves to another store. `format.py` describes the files of a backup."""
