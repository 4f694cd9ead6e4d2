"""Services for session trees, forks, import, repair, compaction and deletion."""
