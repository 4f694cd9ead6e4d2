"""Text for terminals and notebooks: rows, tables and transcripts."""
