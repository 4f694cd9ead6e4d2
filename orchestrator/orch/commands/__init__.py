"""The catalog, the parser and the implementations of slash commands."""
