"""Find the issues of an installation and the commands for solving them, for `tenax doctor` and the settings page."""
