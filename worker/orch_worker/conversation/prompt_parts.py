"""Parts of a prompt: what hooks make of them, how they are brought within their bounds, and as text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from orch_protocol.core.prompts import TIERS, PromptPart, PromptRules, Tier
from orch_protocol.hooks.patches import PromptPatch

from .tokens import TokenEstimator

__all__ = ["LIVE", "PromptPartError", "apply_prompt_patch", "fit_parts", "insert_parts", "of_tier", "render_parts"]

LIVE: Final = "live_subagents"
"""The part that is the last of all."""
NEEDED: Final = frozenset({"identity", "tool_guidance", "tools_taken", "plan_mode", LIVE})
"""Parts that are never left out: without them an agent would not know what it is, or may do."""
LEAST: Final = 20
"""With less room than so many tokens, a part is left out rather than cut."""
NAME: Final = re.compile(r"[\w.:/@-][\w.:/@ -]{0,79}")
CUT: Final = "[{name} is cut: {left} of its {tokens} tokens are left out]"
LEFT_OUT: Final = "[Left out for want of room: {names}]"


class PromptPartError(ValueError):
    """What a hook wants of the parts of a prompt cannot be had; says why."""


def of_tier(parts: Iterable[PromptPart], tier: Tier) -> tuple[PromptPart, ...]:
    """Return the parts of `tier`, in order."""
    return tuple(part for part in parts if part.tier == tier)


def render_parts(parts: Iterable[PromptPart]) -> str:
    """Return the parts as one text: apart by an empty line, those that say nothing left out."""
    return "\n\n".join(part.text for part in parts if part.text)


def insert_parts(parts: Iterable[PromptPart], more: Iterable[PromptPart]) -> tuple[PromptPart, ...]:
    """Return `parts` with `more` behind those of their tier; the live subagents stay the last of all."""
    all_parts = sorted((*parts, *more), key=lambda part: (TIERS.index(part.tier), part.name == LIVE))
    return tuple(all_parts)


def apply_prompt_patch(
    parts: Sequence[PromptPart], patch: PromptPatch, hook: str, *, recorded: bool = False
) -> tuple[PromptPart, ...]:
    """Return `parts` as the hook called `hook` wants them: what it adds or replaces is its own from then on.

    With `recorded` the context tier is on record, and stays: only what stands there already can be added again.
    Raises PromptPartError.
    """
    known = {part.name: part for part in parts}
    for name in () if patch.drop is UNSET else patch.drop:
        if name in known:
            _check_open(known.pop(name).tier, name, recorded)
    for part in () if patch.replace is UNSET else patch.replace:
        there = known.get(part.name)
        if there is None:
            raise PromptPartError(
                f"cannot replace part {part.name!r}: unknown part; available: {', '.join(known) or 'none'}"
            )
        if there.text != part.text:
            _check_open(there.tier, part.name, recorded)
            known[part.name] = replace(there, text=part.text, source=part.source, owner=f"hook {hook}")
    added = []
    for part in () if patch.add is UNSET else patch.add:
        there = known.get(part.name)
        if there is not None:
            if (there.text, there.tier) != (part.text, part.tier):
                raise PromptPartError(f"there is a part {part.name!r} already: replace it, or choose another name")
            continue
        if not NAME.fullmatch(part.name):
            raise PromptPartError(f"invalid part name {part.name!r}: use at most 80 letters, digits and _.:/@-")
        _check_open(part.tier, part.name, recorded)
        known[part.name] = replace(part, owner=f"hook {hook}")
        added.append(part.name)
    kept = [known[part.name] for part in parts if part.name in known and part.name not in added]
    return insert_parts(kept, [known[name] for name in added])


def _check_open(tier: Tier, name: str, recorded: bool) -> None:
    if recorded and tier == "context":
        raise PromptPartError(
            f"{name!r} is of the context tier, which is on record and stays as it was when the agent was first asked; "
            "stable and volatile parts can be changed"
        )


def fit_parts(
    parts: Iterable[PromptPart], tier: Tier, rules: PromptRules, estimator: TokenEstimator
) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]:
    """Return the parts of `tier` within what `rules` allow it, and what was done to the others, a line each.

    Who an agent is, what it may do and who is live is never left out. Of the others those that hooks added go first,
    the last one before the one before it; then the rest, from the end. The one that some of still fits is cut at the
    end of a line. Both is said in the text.
    """
    chosen, most = of_tier(parts, tier), rules.most(tier)
    if most is None or sum(map(estimator.text, (part.text for part in chosen))) <= most:
        return chosen, ()
    room = most - sum(estimator.text(part.text) for part in chosen if part.name in NEEDED)
    kept: dict[str, PromptPart] = {part.name: part for part in chosen if part.name in NEEDED}
    left_out: list[str] = []
    notes: list[str] = []
    others = [part for part in chosen if part.name not in NEEDED]
    for part in sorted(others, key=lambda part: part.owner.startswith("hook ")):
        tokens = estimator.text(part.text)
        if tokens <= room and not left_out:
            kept[part.name] = part
            room -= tokens
            continue
        text = "" if left_out else cut_lines(part.text, room - LEAST, estimator)
        left_out.append(part.name)
        if not text:
            notes.append(f"{part.name} is left out: {tier}_tokens = {most} leave no room for its {tokens} tokens")
            continue
        said = CUT.format(name=part.name, left=tokens - estimator.text(text), tokens=tokens)
        notes.append(f"{said.strip('[]')}: {tier}_tokens = {most}")
        kept[part.name] = replace(part, text=f"{text}\n{said}")
    gone = [name for name in left_out if name not in kept]
    result = [kept[part.name] for part in chosen if part.name in kept]
    if gone:
        said = LEFT_OUT.format(names=", ".join(gone))
        result = list(insert_parts(result, [PromptPart("left_out", said, tier, "built-in", "orch")]))
    return tuple(result), tuple(notes)


def cut_lines(text: str, tokens: int, estimator: TokenEstimator) -> str:
    """Return as many whole lines of `text` as `tokens` hold, of a first line that is too long its beginning."""
    if tokens <= 0:
        return ""
    shown = text
    while shown and (size := estimator.text(shown)) > tokens:
        shown = shown[: max(0, min(len(shown) - 1, len(shown) * tokens // size))]
    if len(shown) == len(text):
        return text
    lines, found, _ = shown.rpartition("\n")
    return (lines if found and lines.strip() else shown).rstrip()
