"""The agents of a run: records, table, references."""
