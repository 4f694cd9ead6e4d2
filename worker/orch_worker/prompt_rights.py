"""Hooks of extensions that touch the prompt are held to the tiers that their manifests name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET

from orch_protocol.extensions import Manifest
from orch_protocol.hook_patches import Patch, PromptPatch, RequestPatch, SystemPatch

from .hooks import Handler, is_async

__all__ = ["PROMPT_STAGES", "held_to_tiers"]

PROMPT_STAGES: Final = frozenset({"before_system_prompt", "after_system_prompt", "before_provider_request"})
"""Where a hook can change what the prompt says."""


def held_to_tiers(function: Handler, manifest: Manifest) -> Handler:
    """Return `function`, whose patches of the prompt touch the tiers that `manifest` permits and no others."""
    tiers = manifest.permissions.tiers

    def held(event: Any, said: Any) -> Any:
        patch = event.patch(**said) if isinstance(said, dict) and event.stage in PROMPT_STAGES else said
        if isinstance(patch, Patch):
            for tier in _touched(event, patch):
                if tier not in tiers:
                    raise PermissionError(
                        f"permissions.tiers has no {tier!r}: it may not change that part of the prompt"
                    )
        return patch

    if is_async(function):

        @functools.wraps(function)
        async def later(event: Any, ctx: Any) -> Any:
            return held(event, await function(event, ctx))

        return later

    @functools.wraps(function)
    def now(event: Any, ctx: Any) -> Any:
        return held(event, function(event, ctx))

    return now


def _touched(event: Any, patch: Patch) -> Iterator[str]:
    """Yield the tier of each part of the prompt that `patch` changes. The system text is what is stable."""
    if isinstance(patch, SystemPatch):
        if patch.text not in (UNSET, event.text):
            yield "stable"
    elif isinstance(patch, RequestPatch):
        if patch.system not in (UNSET, event.system):
            yield "stable"
        if patch.tail not in (UNSET, event.tail):
            yield "volatile"
    elif isinstance(patch, PromptPatch):
        there = {part.name: part.tier for part in event.parts}
        yield from (part.tier for field in (patch.add, patch.replace) if field for part in field)
        yield from (there[name] for name in patch.drop or () if name in there)
        yield from (there[part.name] for part in patch.replace or () if part.name in there)
