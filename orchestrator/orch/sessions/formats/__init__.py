"""File formats of imported sessions."""
