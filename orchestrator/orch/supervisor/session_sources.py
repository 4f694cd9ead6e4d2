"""What a root offers to the sessions of its agents besides what every session has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from orch_protocol.resources.slash_commands import CommandCatalog

from ..resources.prompt_templates import TemplateCatalog

__all__ = ["SessionSources"]


class SessionSources:
    """Templates that programs have registered, and what the catalogs of commands were when somebody looked last."""

    def __init__(self) -> None:
        self.registered: TemplateCatalog | None = None
        """The templates of this program, None where there is none: a daemon's are those that are configured."""
        self.digests: dict[str, str] = {}
        """The digest of each agent's catalog, by id, of those whose catalog somebody has asked for."""
        self.brought: dict[str, tuple[int, CommandCatalog]] = {}
        """What the extensions of each agent bring, and which of its processes has said so."""

    def forget(self, id: str) -> None:
        """The agent `id` is gone."""
        self.digests.pop(id, None)
        self.brought.pop(id, None)

    def follow(self, templates: TemplateCatalog, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let `templates` be commands, and let `look` be called, on this event loop, when there are more of them."""
        self.registered = templates
        loop, looking = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin() -> None:
            if self.digests:
                task = loop.create_task(look())
                looking.add(task)
                task.add_done_callback(looking.discard)

        templates.added = lambda: loop.call_soon_threadsafe(begin)
