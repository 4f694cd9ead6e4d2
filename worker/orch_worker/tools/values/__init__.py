"""Large values: storage, encoding and representation."""
