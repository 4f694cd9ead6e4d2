"""Prompt permissions of extensions: hooks may change only the tiers in `permissions.tiers`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET

from orch_protocol.hooks.patches import Patch, PromptPatch, RequestPatch, SystemPatch
from orch_protocol.resources.extensions import Manifest

from ..hooks.hook import Handler, is_async

__all__ = ["PROMPT_STAGES", "check_tiers"]

PROMPT_STAGES: Final = frozenset({"before_system_prompt", "after_system_prompt", "before_provider_request"})
"""Stages whose hooks can change the prompt."""


def check_tiers(function: Handler, manifest: Manifest) -> Handler:
    """Return `function` with a check of its result.

    A patch that changes a tier outside `permissions.tiers` raises PermissionError.
    """
    tiers = manifest.permissions.tiers

    def check_result(event: Any, result: Any) -> Any:
        patch = event.patch(**result) if isinstance(result, dict) and event.stage in PROMPT_STAGES else result
        if isinstance(patch, Patch):
            for tier in _changed_tiers(event, patch):
                if tier not in tiers:
                    message = f"permissions.tiers has no {tier!r}: add it to extension.toml to change that tier"
                    raise PermissionError(message)
        return patch

    if is_async(function):

        @functools.wraps(function)
        async def async_hook(event: Any, ctx: Any) -> Any:
            return check_result(event, await function(event, ctx))

        return async_hook

    @functools.wraps(function)
    def hook(event: Any, ctx: Any) -> Any:
        return check_result(event, function(event, ctx))

    return hook


def _changed_tiers(event: Any, patch: Patch) -> Iterator[str]:
    """Yield the tier of each prompt part changed by `patch`. The system text is the stable tier."""
    if isinstance(patch, SystemPatch):
        if patch.text not in (UNSET, event.text):
            yield "stable"
    elif isinstance(patch, RequestPatch):
        if patch.system not in (UNSET, event.system):
            yield "stable"
        if patch.tail not in (UNSET, event.tail):
            yield "volatile"
    elif isinstance(patch, PromptPatch):
        tier_of = {part.name: part.tier for part in event.parts}
        yield from (part.tier for field in (patch.add, patch.replace) if field for part in field)
        yield from (tier_of[name] for name in patch.drop or () if name in tier_of)
        yield from (tier_of[part.name] for part in patch.replace or () if part.name in tier_of)
