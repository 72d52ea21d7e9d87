"""Import conversations of other programs, and exports of Tenax. `draft.py` has the common shape of a conversation."""
