"""Styled text, Markdown and diffs for a terminal."""
