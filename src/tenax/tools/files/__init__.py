"""Tools for reading, changing and finding files."""
