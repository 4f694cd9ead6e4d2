"""Adds each text in `texts/` to the stable part of the prompt, in alphabetical order of the file names."""

from pathlib import Path

from orch import PromptPart

PLACE = Path(__file__).parent / "texts"


def register(extension):
    parts = tuple(
        PromptPart(file.stem, file.read_text().strip(), tier="stable", source=f"{extension.manifest.name}/{file.name}")
        for file in sorted(PLACE.glob("*.md"))
    )

    @extension.hook("before_system_prompt", kind="transform", does=["add"])
    def add(event, _ctx):
        there = {part.name for part in event.parts}
        return event.patch(add=tuple(part for part in parts if part.name not in there))
