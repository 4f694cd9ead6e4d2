"""Services about archives: archiving, recall and deletion."""
