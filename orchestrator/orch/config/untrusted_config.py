"""Decides which settings an untrusted project file may change.

Only stricter values are allowed. The functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import Config, HooksConfig
from orch_protocol.agent.project import RANK as CONTEXT_RANK
from orch_protocol.core.prompts import TIERS
from orch_protocol.policy.budget import Budget
from orch_protocol.policy.policy import RANK
from orch_protocol.policy.sandbox import LEVELS, ToolLimits

__all__ = ["STRICTNESS_CHECKS", "USER_ONLY_SETTINGS", "fields_of", "is_restriction"]


def is_restriction(key: str, new: Any, old: Any) -> bool:
    """Return whether the value `new` of the setting `key` is at least as strict as `old`.

    If `old` is None, the setting is not set.
    """
    return STRICTNESS_CHECKS[key if key in STRICTNESS_CHECKS else key.rpartition(".")[0]](new, old)


def fields_of(struct: type[Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the type of each setting in `struct` and its sections."""
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            yield from fields_of(field.type, f"{prefix}{field.encode_name}.")
        else:
            yield prefix + field.encode_name, field.type


def _never(new: Any, old: Any) -> bool:  # noqa: ARG001
    return False


def _at_most(new: Any, old: Any) -> bool:
    return bool(new <= old)


def _at_least(new: Any, old: Any) -> bool:
    return bool(new >= old)


def _is_as_strict_level(new: Any, old: Any) -> bool:
    return bool(new >= (old or LEVELS[-1]))


def _at_most_if_any(new: Any, old: Any) -> bool:
    return new is not None and (old is None or bool(new <= old))


def _as_strict(new: Any, old: Any) -> bool:
    return new is not None and RANK[new] >= RANK[old or "ask"]


def _is_as_strict_permission(new: Any, old: Any) -> bool:
    return new == "deny" or (old is not None and RANK[new] >= RANK[old])


def _passes_less_context(new: Any, old: Any) -> bool:
    return CONTEXT_RANK[new] <= CONTEXT_RANK[old]


def _is_superset(new: Any, old: Any) -> bool:
    return set(new) >= set(old)


USER_ONLY_SETTINGS: Final = tuple(
    key for key, _ in fields_of(Config) if re.search(r"^(archival|memory|workspace)\.|context_compaction\.", key)
)
"""Settings about archiving, summaries, memory and workspace."""

TAINT_RANK: Final = {"off": 0, "ask": 1, "deny": 2}

# The check for each key in an untrusted file. A test ensures that this table is complete.
STRICTNESS_CHECKS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    **dict.fromkeys(("model", "thinking"), _never),
    "session_dir": _never,
    "durability": lambda new, _: bool(new == "power"),
    "subagents.enabled": _at_most,
    "subagents.max_concurrent": _at_most,
    "subagents.depth_cap": _at_most,
    "subagents.allow_nested": _at_most,
    "subagents.timeout_minutes": _at_most,
    "subagents.restarts": _at_most,
    "subagents.default_preset": lambda new, old: new in ("minimal", old),
    "subagents.default_tools": lambda new, old: new is not None and set(new) <= set(old or ()),
    "subagents.chat_models": lambda new, old: new is not None and (old is None or set(new) <= set(old)),
    "subagents.models": lambda new, old: set(new) <= set(old),
    **dict.fromkeys((f"subagents.{limit}" for limit in Budget.__struct_fields__), _at_most_if_any),
    **dict.fromkeys(
        (f"subagents.context.{name}" for name in ("minimal", "investigate", "work", "tools")), _passes_less_context
    ),
    "subagents.context.files": lambda new, old: set(new) <= set(old),
    "subagents.context.packages": lambda new, old: set(new) <= set(old),
    "subagents.context.full_tokens": _at_most,
    **dict.fromkeys(("prompt.template", "prompt.templates", "prompt.vars"), _never),
    **dict.fromkeys(("prompt.time", "prompt.workspace"), _at_most),
    **dict.fromkeys((f"prompt.{tier}_tokens" for tier in TIERS), _at_most_if_any),
    **dict.fromkeys((f"budget.{limit}" for limit in Budget.__struct_fields__), _at_most_if_any),
    "budget.unknown_price": lambda new, old: new is not None and old is not None and new >= old,
    "limits.max_turns": _at_most,
    "limits.continuations": _at_most,
    "limits.turn_seconds": _at_most,
    "limits.tool_seconds": _at_most,
    "limits.reply_tokens": _at_most,
    "daemon.idle_minutes": _at_most,
    "environment.pass": lambda new, old: set(new) <= set(old),
    "approval.channel": lambda new, _: bool(new == "person"),
    "policy.approval_mode": _as_strict,
    "policy.dangerous_tools": _is_superset,
    "policy.permissions": _is_as_strict_permission,
    "policy.denied_paths": _is_superset,
    "policy.require_denied_paths": _at_least,
    "policy.usable_credentials": lambda new, old: set(new) <= set(old),
    "policy.allowed_paths": lambda new, old: new is not None and (old is None or set(new) <= set(old)),
    "policy.personal_paths": _is_superset,
    "policy.code_paths": _is_superset,
    "policy.approval_seconds": _at_most,
    **dict.fromkeys((key for key, _ in fields_of(HooksConfig, "hooks.")), _never),
    "extensions.load": _never,
    "skills.enabled": _at_most,
    **dict.fromkeys(("skills.folders", "skills.load"), _never),
    "skills.tokens": _at_most,
    "skills.presets": lambda new, old: old is None or set(new) <= set(old),
    "policy.no_local_model": lambda new, _: bool(new == "deny"),
    "policy.dry_run": lambda new, old: bool(new or not old),
    "policy.function": _never,
    "policy.taint.mode": lambda new, old: TAINT_RANK[new] >= TAINT_RANK[old],
    "policy.taint.trusted_hosts": lambda new, old: set(new) <= set(old),
    "policy.taint.untrusted_paths": _is_superset,
    "policy.taint.sensitive_paths": _is_superset,
    "policy.taint.tools": _never,
    "sandbox.level": _at_least,
    "sandbox.require": _at_least,
    **dict.fromkeys(("sandbox.presets", "sandbox.tools"), _is_as_strict_level),
    "sandbox.network": _at_most,
    **dict.fromkeys(("sandbox.read", "sandbox.write"), lambda new, old: set(new) <= set(old)),
    **dict.fromkeys((key for key, _ in fields_of(ToolLimits, "sandbox.limits.")), _at_most_if_any),
    # Only the user decides what is archived, summarized or remembered, and what this may cost.
    **dict.fromkeys(USER_ONLY_SETTINGS, _never),
}
