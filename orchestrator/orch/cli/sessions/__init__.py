"""The commands about sessions and archives."""
