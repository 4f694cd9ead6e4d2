"""Parts of a prompt: changes by hooks, token limits, and rendering. This module does no I/O."""

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
"""The name of the part that is always last."""
NEEDED: Final = frozenset({"identity", "tool_guidance", "tools_taken", "plan_mode", LIVE})
"""Parts that are never left out, because an agent must know its identity and its permissions."""
MIN_CUT_TOKENS: Final = 20
"""Minimum size of a part that is cut. If fewer tokens are free, the part is left out."""
NAME: Final = re.compile(r"[\w.:/@-][\w.:/@ -]{0,79}")
CUT: Final = "[{name} is cut: {left} of its {tokens} tokens are left out]"
LEFT_OUT: Final = "[Left out for lack of space: {names}]"


class PromptPartError(ValueError):
    """A hook requested a change of prompt parts that is not possible. The message gives the reason."""


def of_tier(parts: Iterable[PromptPart], tier: Tier) -> tuple[PromptPart, ...]:
    """Return the parts of `tier`, in order."""
    return tuple(part for part in parts if part.tier == tier)


def render_parts(parts: Iterable[PromptPart]) -> str:
    """Return the non-empty parts as one text, separated by empty lines."""
    return "\n\n".join([part.text for part in parts if part.text])


def insert_parts(parts: Iterable[PromptPart], more: Iterable[PromptPart]) -> tuple[PromptPart, ...]:
    """Return `parts` with `more` inserted at the end of their tiers. The live-subagents part stays last."""
    all_parts = sorted((*parts, *more), key=lambda part: (TIERS.index(part.tier), part.name == LIVE))
    return tuple(all_parts)


def apply_prompt_patch(
    parts: Sequence[PromptPart], patch: PromptPatch, hook: str, *, recorded: bool = False
) -> tuple[PromptPart, ...]:
    """Return `parts` as changed by `patch`, a patch of the hook called `hook`.

    The hook becomes the owner of parts that it adds or replaces. If `recorded` is True, the context tier is already in
    the transcript and cannot change, but an identical part may be added again. Raise PromptPartError for a change that
    is not possible.
    """
    known = {part.name: part for part in parts}
    for name in () if patch.drop is UNSET else patch.drop:
        if name in known:
            _check_open(known.pop(name).tier, name, recorded)
    for part in () if patch.replace is UNSET else patch.replace:
        existing = known.get(part.name)
        if existing is None:
            raise PromptPartError(
                f"cannot replace part {part.name!r}: unknown part; available: {', '.join(known) or 'none'}"
            )
        if existing.text != part.text:
            _check_open(existing.tier, part.name, recorded)
            known[part.name] = replace(existing, text=part.text, source=part.source, owner=f"hook {hook}")
    added = []
    for part in () if patch.add is UNSET else patch.add:
        existing = known.get(part.name)
        if existing is not None:
            if (existing.text, existing.tier) != (part.text, part.tier):
                raise PromptPartError(
                    f"prompt part {part.name!r} already exists: replace the part, or choose another name"
                )
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
            f"cannot change part {name!r}: the context tier was recorded with the first query and is fixed; "
            "stable and volatile parts can be changed"
        )


def fit_parts(
    parts: Iterable[PromptPart], tier: Tier, rules: PromptRules, estimator: TokenEstimator
) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]:
    """Return the parts of `tier` within the limits of `rules`, and a note for each part that was cut or left out.

    Parts in `NEEDED` are never left out. Parts added by hooks are removed first, beginning with the last part. Then
    other parts are removed, from the end. The first part that does not fit is cut at the end of a line. The text
    mentions the missing parts.
    """
    chosen, limit = of_tier(parts, tier), rules.token_limit(tier)
    if limit is None or sum(map(estimator.text, (part.text for part in chosen))) <= limit:
        return chosen, ()
    room = limit - sum(estimator.text(part.text) for part in chosen if part.name in NEEDED)
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
        text = "" if left_out else cut_lines(part.text, room - MIN_CUT_TOKENS, estimator)
        left_out.append(part.name)
        if not text:
            notes.append(f"{part.name} is left out: {tier}_tokens = {limit} leave no room for its {tokens} tokens")
            continue
        notice = CUT.format(name=part.name, left=tokens - estimator.text(text), tokens=tokens)
        notes.append(f"{notice.strip('[]')}: {tier}_tokens = {limit}")
        kept[part.name] = replace(part, text=f"{text}\n{notice}")
    gone = [name for name in left_out if name not in kept]
    result = [kept[part.name] for part in chosen if part.name in kept]
    if gone:
        notice = LEFT_OUT.format(names=", ".join(gone))
        result = list(insert_parts(result, [PromptPart("left_out", notice, tier, "built-in", "orch")]))
    return tuple(result), tuple(notes)


def cut_lines(text: str, tokens: int, estimator: TokenEstimator) -> str:
    """Return as many whole lines of `text` as fit into `tokens` tokens.

    If the first line is too long, return its beginning.
    """
    if tokens <= 0:
        return ""
    shown = text
    while shown and (size := estimator.text(shown)) > tokens:
        shown = shown[: max(0, min(len(shown) - 1, len(shown) * tokens // size))]
    if len(shown) == len(text):
        return text
    lines, found, _ = shown.rpartition("\n")
    return (lines if found and lines.strip() else shown).rstrip()
