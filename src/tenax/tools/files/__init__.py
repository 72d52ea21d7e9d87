"""Tools that read, change and find files."""
