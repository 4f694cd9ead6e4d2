"""Sessions of other programs, copied to archives that `orch archive search` finds."""
