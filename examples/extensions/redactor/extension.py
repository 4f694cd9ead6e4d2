"""Removes text that matches `patterns.txt` from tool results, before the results are stored or shown to a model."""

import re
from pathlib import Path

PLACE = Path(__file__).parent / "patterns.txt"
INSTEAD = "[redacted]"


def register(extension):
    lines = PLACE.read_text().splitlines()
    patterns = [re.compile(line) for line in lines if line.strip() and not line.startswith("#")]
    counted = {"redactions": 0}

    # If this hook fails, the result is withheld, because it could not be checked.
    @extension.hook("tool_result", priority=5, on_error="closed", does=["text"])
    def redact(event, _ctx):
        text = event.text
        for pattern in patterns:
            text, count = pattern.subn(INSTEAD, text)
            counted["redactions"] += count
        return event.patch(text=text) if text != event.text else None

    @extension.tool(bits=[])
    def count_redactions() -> str:
        """Return the number of redactions so far."""
        return f"{counted['redactions']} so far"
