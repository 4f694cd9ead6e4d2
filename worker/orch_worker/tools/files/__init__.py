"""Tools that read, write and search files."""
