"""Tools that fetch web pages."""
