"""Archives on disk: catalog, index, search and deletion."""
