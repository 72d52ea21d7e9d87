"""Messages sent at a set time."""
