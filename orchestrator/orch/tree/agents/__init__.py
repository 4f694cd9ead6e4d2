"""The agents of a run.

The modules contain the record of an agent, the table of all records, and the resolution of references.
"""
