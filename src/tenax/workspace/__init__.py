"""The files that tools work on: folders, changes, and putting them back."""
