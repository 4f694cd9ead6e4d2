"""Replay: what a recorded session would have cost under another policy, with the archives really made."""
