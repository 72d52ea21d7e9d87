"""What is wrong with an installation, and the command that solves it. `tenax doctor` and the settings page show it."""
