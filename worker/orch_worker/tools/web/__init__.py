"""Tools that fetch pages."""
