"""`o.hooks`: list hooks with their statistics, and switch them off and on."""

from __future__ import annotations

import builtins

from orch_protocol.agent.config import Config
from orch_worker.hooks.loader import configured_hooks

from ...policy.hook_records import AUDIT_LOG, HookLine, hook_lines, hooks_spec, set_enabled
from ...policy.root_hooks import RootHooks

__all__ = ["Hooks"]


class Hooks:
    """Hooks of the configuration, of this program, and of other programs of the same user."""

    def __init__(self, hooks: RootHooks, config: Config) -> None:
        self._hooks = hooks
        self._config = config

    def list(self) -> builtins.list[HookLine]:
        """Return every hook with its stages, whether it is enabled, and its calls and errors so far.

        Statistics are written with a delay of about half a second. Raises ConfigError when a configured hook cannot be
        imported.
        """
        configured = self._config.hooks
        rows = [hook.row for hook in configured_hooks(configured.load, hooks_spec(configured).options)]
        return [*hook_lines(self._hooks.home, [*rows, *self._hooks.rows]), AUDIT_LOG]

    def enable(self, name: str) -> bool:
        """Switch a hook on for all agents of this user, from their next turn on. Returns whether it was off."""
        return set_enabled(self._hooks.home, name, enabled=True)

    def disable(self, name: str) -> bool:
        """Switch a hook off for all agents of this user, from their next turn on. Returns whether it was on.

        Raises ConfigError for `audit_log`, which is always on.
        """
        return set_enabled(self._hooks.home, name, enabled=False)
