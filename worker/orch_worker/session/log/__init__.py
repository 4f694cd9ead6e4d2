"""The append-only file behind a session: lines, checksums, rewriting and its lock."""
