"""The file formats that sessions are imported from."""
