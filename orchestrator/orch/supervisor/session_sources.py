"""Templates, tools and commands that a root adds to the sessions of its agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from orch_protocol.resources.slash_commands import CommandCatalog

from ..resources.program_extensions import ProgramExtensions
from ..resources.prompt_templates import TemplateCatalog

__all__ = ["SessionSources"]


class SessionSources:
    """Registrations of the program, and the last known command catalog of each agent."""

    def __init__(self) -> None:
        self.program_templates: TemplateCatalog | None = None
        """The templates registered by this program.
        None in a daemon, because a daemon uses the configured templates.
        """
        self.program = ProgramExtensions()
        """The tools, commands and extensions registered by this program."""
        self.digests: dict[str, str] = {}
        """Digest of each agent's command catalog, by agent id. Contains only agents whose catalog was requested."""
        self.extension_commands: dict[str, tuple[int, CommandCatalog]] = {}
        """The commands of each agent's extensions, by agent id, with the number of the process that reported them."""

    def forget(self, id: str) -> None:
        self.digests.pop(id, None)
        self.extension_commands.pop(id, None)

    def use_program(
        self, templates: TemplateCatalog, program: ProgramExtensions, reload: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Offer `templates` and the commands of `program` to agents.

        When the templates or commands change, `reload` is called on this event loop.
        """
        self.program_templates, self.program = templates, program
        loop, reload_tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin() -> None:
            if self.digests:
                task = loop.create_task(reload())
                reload_tasks.add(task)
                task.add_done_callback(reload_tasks.discard)

        templates.changed = program.changed = lambda: loop.call_soon_threadsafe(begin)
