"""Archives on disk, with their catalog, index, search and deletion."""
