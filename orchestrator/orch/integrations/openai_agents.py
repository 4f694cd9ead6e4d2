"""Archival for the OpenAI Agents SDK.

    run_config = Archival("conversations").run_config(agent)
    result = await Runner.run(agent, prompt, session=session, run_config=run_config)

The filter `call_model_input_filter` changes what is sent. Sessions and results keep the whole conversation. The recall
tools are ordinary tools of the agents, so their calls are part of the conversation, of streams and of traces.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Literal

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError

from ..archival.recall import TOOLS
from ..gateway.api import decode_value, parse_arguments
from ..gateway.core import RECALL_NAMES
from ..gateway.receipt import BYTES_PER_TOKEN
from ..gateway.responses import RESPONSES
from .conversations import Conversations, Request, encode_messages, imported

__all__ = ["Archival"]

PACKAGE: Final = "openai-agents"
IS_RECALL_TOOL: Final = "_orch_recall_tool"
"""The attribute of recall tools, which a later Archival replaces."""

log: Final = logging.getLogger("orch.integrations")


class Archival:
    """Archives long conversations of agents below `folder`.

    `profile` and `config` are those of `Archiver`. With the profile "off", nothing changes. `warn` is called with each
    problem, for example a damaged folder; None writes it to a log. Use one Archival for a folder in a program. It can
    be used by several agents and runs at once. Raises ConfigError for an unknown profile, or if the SDK is not
    installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        profile: Profile | Literal["off"] = "balanced",
        *,
        config: ArchivalConfig | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._agents = imported("agents", PACKAGE)
        self._conversations = Conversations(RESPONSES, folder, profile, config, warn)
        self._warn = warn or log.warning
        self._without_tools: set[str] = set()
        self._request: ContextVar[Request | None] = ContextVar("request", default=None)
        self.tools: list[Any] = [self._tool(*each) for each in TOOLS]
        """The recall tools, for the agents whose requests are archived."""

    def run_config(self, *agents: Any, base: Any = None) -> Any:
        """Add the recall tools to `agents`, and return a RunConfig that archives the requests of a run.

        Pass all agents of the run, also those of handoffs. `base` is a RunConfig whose other fields are kept. If it has
        a `call_model_input_filter`, this filter gets the archived input. Raises ConfigError if an agent has another
        tool with the name of a recall tool.
        """
        for agent in agents:
            others = [tool for tool in agent.tools if not getattr(tool, IS_RECALL_TOOL, False)]
            if taken := RECALL_NAMES & {getattr(tool, "name", None) for tool in others}:
                raise ConfigError(f"the agent {agent.name!r} has a tool named {min(taken)!r}: give it another name")
            agent.tools = [*others, *self.tools]
        base = base or self._agents.RunConfig()
        return dataclasses.replace(base, call_model_input_filter=self._then(base.call_model_input_filter))

    async def filter(self, data: Any) -> Any:
        """Return the input of a model request with archived turns. It is a `call_model_input_filter`."""
        given, agent = data.model_data, data.agent
        if not set(map(id, agent.tools)).issuperset(map(id, self.tools)):
            self._report(agent.name)
            return given
        parts = [given.instructions or "", *(str(getattr(tool, "params_json_schema", "")) for tool in agent.tools)]
        request = Request("", encode_messages(given.input), sum(map(len, parts)) // BYTES_PER_TOKEN)
        self._request.set(request)
        prepared = await self._conversations.prepare_async(request)
        if prepared is None:
            return given
        items: list[Any] = [decode_value(raw) for raw in prepared.encoded]
        for place in range(1, min(len(items), len(request.items)) + 1):
            if prepared.encoded[-place] != request.items[-place]:
                break
            items[-place] = given.input[-place]  # The SDK recognizes its own objects.
        return dataclasses.replace(given, input=items)

    def close(self) -> None:
        """Close the files. Call this after the last run; the end of the program closes them too."""
        self._conversations.close()

    def _report(self, name: str) -> None:
        """Report an agent without recall tools once."""
        if name not in self._without_tools:
            self._without_tools.add(name)
            self._warn(f"the agent {name!r} has no recall tools, so its requests pass unchanged: add Archival.tools")

    def _then(self, following: Any) -> Any:
        if following is None:
            return self.filter

        async def filter(data: Any) -> Any:
            changed = following(dataclasses.replace(data, model_data=await self.filter(data)))
            return await changed if inspect.isawaitable(changed) else changed

        return filter

    def _tool(self, name: str, description: str, schema: dict[str, Any]) -> Any:
        async def call(context: Any, arguments: str) -> str:
            request = self._request.get()
            if request is None:  # A run that was interrupted and continues with this call.
                request = Request("", encode_messages(context.turn_input), 0)
            return await self._conversations.recall_async(request, name, parse_arguments(arguments))

        tool = self._agents.FunctionTool(
            name=name,
            description=description,
            params_json_schema=schema,
            on_invoke_tool=call,
            strict_json_schema=False,
        )
        setattr(tool, IS_RECALL_TOOL, True)
        return tool
