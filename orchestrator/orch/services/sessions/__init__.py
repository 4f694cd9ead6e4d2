"""Services about sessions: trees, forks, import, repair and compaction."""
