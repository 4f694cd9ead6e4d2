"""`o.hooks` lists hooks with their statistics, and enables or disables hooks."""

from __future__ import annotations

import builtins

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError
from orch_worker.hooks.loader import BUILTIN, configured_hooks

from ...policy.hook_records import AUDIT_LOG, HookLine, hook_lines, hooks_spec, set_enabled
from ...policy.root_hooks import RootHooks

__all__ = ["Hooks"]


class Hooks:
    """Built-in hooks, and hooks of the configuration, of this program, and of other programs of the same user."""

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
        return [*hook_lines(self._hooks.home, [*rows, *self._hooks.registered]), AUDIT_LOG]

    def enable(self, name: str) -> bool:
        """Enable a hook for all agents of this user from their next turn. Return True if the hook was disabled before.

        Raises ConfigError for a built-in hook that the configuration does not load.
        """
        builtin = name.partition(".")[0]
        if builtin in BUILTIN and builtin not in self._config.hooks.load:
            raise ConfigError(f"{builtin} is not loaded: add it to hooks.load, as `orch hooks enable {builtin}` does")
        return set_enabled(self._hooks.home, name, enabled=True)

    def disable(self, name: str) -> bool:
        """Disable a hook for all agents of this user from their next turn. Return True if the hook was enabled before.

        Raises ConfigError for `audit_log`, which is always enabled.
        """
        return set_enabled(self._hooks.home, name, enabled=False)
