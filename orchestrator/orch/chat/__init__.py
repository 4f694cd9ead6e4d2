"""The interactive terminal chat."""
