"""Services for models and their selection."""
