"""Archival for LangChain's `create_agent`, and with it LangGraph and deepagents.

    agent = create_agent(model, tools, middleware=[archival("conversations")])

The middleware changes what is sent. The state of the graph keeps the whole conversation. The recall tools are ordinary
tools of the agent, so their calls are part of the conversation, of streams and of traces. The model gets them once the
conversation has archives.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError

from ..archival.recall import TOOLS
from ..gateway.chat import CHAT
from ..gateway.conversation import Prepared
from ..gateway.core import RECALL_NAMES
from ..gateway.receipt import BYTES_PER_TOKEN
from .conversations import Conversations, Request, encode_messages, imported
from .langchain_messages import chat_message, with_originals

__all__ = ["archival"]

PACKAGE: Final = "langchain"
MAX_CALLS: Final = 16
"""Maximum number of recall calls that are not answered yet and whose requests are kept."""


def archival(
    folder: str | os.PathLike[str],
    profile: Profile | Literal["off"] = "balanced",
    *,
    name: str = "Archival",
    config: ArchivalConfig | None = None,
    warn: Callable[[str], None] | None = None,
) -> Any:
    """Return an AgentMiddleware that archives long conversations below `folder`.

    `profile` and `config` are those of `Archiver`. With the profile "off", nothing changes. `name` is the name of the
    middleware; deepagents replaces a middleware of its own that has the same name. `warn` is called with each problem,
    for example a damaged folder; None writes it to a log. Use one middleware for a folder in a program. It can be used
    by several agents and threads at once; its method `close` closes the files. Raises ConfigError for an unknown
    profile, or if LangChain is not installed.
    """
    types = imported("langchain.agents.middleware", PACKAGE)
    tools = imported("langchain.tools", PACKAGE)
    core = imported("langchain_core.tools", PACKAGE)
    messages = imported("langchain_core.messages", PACKAGE)
    get_config = imported("langgraph.config", PACKAGE).get_config
    threads = _Threads(Conversations(CHAT, folder, profile, config, warn), messages.convert_to_messages)

    def recall_tool(tool: str, description: str, schema: dict[str, Any]) -> Any:
        def call(runtime: Any, **input: Any) -> str:
            return threads.conversations.recall(threads.request_of_call(runtime), tool, input)

        async def call_async(runtime: Any, **input: Any) -> str:
            return await threads.conversations.recall_async(threads.request_of_call(runtime), tool, input)

        for function in (call, call_async):
            function.__annotations__["runtime"] = tools.ToolRuntime
        return core.StructuredTool(
            name=tool, description=description, args_schema=schema, func=call, coroutine=call_async
        )

    base: Any = types.AgentMiddleware

    class Archival(base):  # type: ignore[misc]
        """Sends the records of archived turns in place of the turns."""

        def __init__(self) -> None:
            super().__init__()
            self.tools = [recall_tool(*each) for each in TOOLS]

        @property
        def name(self) -> str:
            return name

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            asked, plain = threads.request(request, get_config())
            response = handler(self._changed(request, threads.conversations.prepare(asked), plain))
            threads.remember(response, asked)
            return response

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            asked, plain = threads.request(request, get_config())
            prepared = await threads.conversations.prepare_async(asked)
            response = await handler(self._changed(request, prepared, plain))
            threads.remember(response, asked)
            return response

        def close(self) -> None:
            """Close the files. Call this after the last run; the end of the program closes them too."""
            threads.conversations.close()

        def _changed(self, request: Any, prepared: Prepared | None, plain: Sequence[Any]) -> Any:
            others = [tool for tool in request.tools if _name_of(tool) not in RECALL_NAMES]
            if prepared is None:
                # Servers refuse calls in messages if a request has no tools.
                kept = self.tools if _has_recalls(request.messages) else []
                return request.override(tools=[*others, *kept])
            changed = with_originals(prepared, request.messages, plain, threads.new_message)
            return request.override(messages=changed, tools=[*others, *self.tools])

    return Archival()


class _Threads:
    """The threads of a program."""

    def __init__(self, conversations: Conversations, convert: Callable[[list[Any]], list[Any]]) -> None:
        self.conversations = conversations
        self._convert = convert
        self._tool_sizes: dict[str, int] = {}
        self._asked: OrderedDict[str, Request] = OrderedDict()
        """The request to which a recall call that is not answered yet responds, by the id of the call."""

    def new_message(self, plain: Any) -> Any:
        """Return plain data as a message of LangChain."""
        return self._convert([plain])[0]

    def request(self, request: Any, config: Any) -> tuple[Request, list[Any]]:
        """Return the messages of a request of LangChain, encoded and as plain data."""
        system = request.system_message.text if request.system_message else ""
        beside = len(system) + sum(map(self._tool_size, request.tools))
        return _request(request.messages, config, beside // BYTES_PER_TOKEN)

    def remember(self, response: Any, asked: Request) -> None:
        """Remember the request to which the calls of recall tools in `response` respond."""
        response = getattr(response, "model_response", response)
        for message in getattr(response, "result", [response]):
            for call in getattr(message, "tool_calls", ()):
                if call["name"] in RECALL_NAMES and call["id"]:
                    self._asked[call["id"]] = asked
        while len(self._asked) > MAX_CALLS:
            self._asked.popitem(last=False)

    def request_of_call(self, runtime: Any) -> Request:
        """Return the request to which the call of a recall tool responds."""
        if asked := self._asked.pop(runtime.tool_call_id, None):
            return asked
        before: list[Any] = []  # The program was started again after the response.
        for message in runtime.state["messages"]:
            if any(call["id"] == runtime.tool_call_id for call in getattr(message, "tool_calls", ())):
                break
            before.append(message)
        return _request(before, runtime.config, 0)[0]

    def _tool_size(self, tool: Any) -> int:
        name = _name_of(tool)
        if name not in self._tool_sizes:
            schema = tool if isinstance(tool, dict) else (tool.description, tool.args)
            self._tool_sizes[name] = len(str(schema))
        return self._tool_sizes[name]


def _request(messages: Sequence[Any], config: Any, beside: int) -> tuple[Request, list[Any]]:
    try:
        plain = [chat_message(message) for message in messages]
    except (ConfigError, LookupError, TypeError, ValueError, AttributeError):
        plain = []  # A kind of message that is not known.
    thread = config.get("configurable", {}).get("thread_id")
    return Request("" if thread is None else str(thread), encode_messages(plain), beside), plain


def _has_recalls(messages: Sequence[Any]) -> bool:
    return any(call["name"] in RECALL_NAMES for message in messages for call in getattr(message, "tool_calls", ()))


def _name_of(tool: Any) -> str:
    if not isinstance(tool, dict):
        return str(tool.name)
    function = tool.get("function")
    return str((function if isinstance(function, dict) else tool).get("name", ""))
