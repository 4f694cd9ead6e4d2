"""The append-only file of a session: lines, checksums, rewriting and the lock."""
