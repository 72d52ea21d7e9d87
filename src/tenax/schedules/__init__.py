"""Messages that are sent at a set time."""
