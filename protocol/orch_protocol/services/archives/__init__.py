"""Services for archives: archiving, recall and deletion."""
