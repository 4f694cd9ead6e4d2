"""Import, export, repair and audit of sessions."""
