"""The changes of turns in the working folder, and their reversal."""
