"""Takes what `patterns.txt` names out of tool results, before they are kept or shown to a model."""

import re
from pathlib import Path

PLACE = Path(__file__).parent / "patterns.txt"
INSTEAD = "[redacted]"


def register(extension):
    lines = PLACE.read_text().splitlines()
    patterns = [re.compile(line) for line in lines if line.strip() and not line.startswith("#")]
    counted = {"redactions": 0}

    # Closed: a result that could not be looked through is withheld.
    @extension.hook("tool_result", priority=5, on_error="closed", does=["text"])
    def redact(event, _ctx):
        text = event.text
        for pattern in patterns:
            text, count = pattern.subn(INSTEAD, text)
            counted["redactions"] += count
        return event.patch(text=text) if text != event.text else None

    @extension.tool(bits=[])
    def count_redactions() -> str:
        """Say how many things were taken out of tool results so far."""
        return f"{counted['redactions']} so far"
