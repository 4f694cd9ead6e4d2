"""The backend contract, and the conversation that all backends share."""

from __future__ import annotations

import pytest

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_worker.backends import make_backend, template_for
from orch_worker.backends.base import Conversation, check_backend
from orch_worker.backends.offline.extractive import ExtractiveBackend
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.conversation.tokens import clip


class TestRegistry:
    """Creating a backend from a spec."""

    def test_registry_creates_the_backend_of_a_spec(self) -> None:
        """Each provider has a backend class and a template."""
        assert isinstance(make_backend(ScriptedBackend(["a"]).spec(), {}), ScriptedBackend)
        assert isinstance(make_backend(BackendSpec("extractive"), {}), ExtractiveBackend)
        assert template_for(BackendSpec("extractive")) == template_for(BackendSpec("scripted")) == "lean"

    def test_unknown_provider(self) -> None:
        """The error for an unknown provider names it and the known providers."""
        with pytest.raises(ConfigError, match=r"unknown provider 'oracle': .*extractive, scripted"):
            make_backend(BackendSpec("oracle"), {})
        with pytest.raises(ConfigError, match="'oracle'"):
            template_for(BackendSpec("oracle"))

    @pytest.mark.parametrize(
        "spec",
        [
            BackendSpec("extractive", "large"),
            BackendSpec("extractive", options={"k": 1}),
            BackendSpec("scripted"),
            BackendSpec("scripted", options={"items": "abc"}),
            BackendSpec("scripted", options={"items": [], "speed": 1}),
        ],
    )
    def test_unknown_backend_options_are_refused(self, spec: BackendSpec) -> None:
        """A model or options that the provider does not support are refused."""
        with pytest.raises(ConfigError, match=spec.provider):
            make_backend(spec, {})


class TestContract:
    """The methods that an object must have to be a backend."""

    def test_missing_backend_methods_are_named(self) -> None:
        with pytest.raises(ConfigError, match="Conversation is not a Backend: it lacks assistant_turn, info"):
            check_backend(Conversation())

    def test_synchronous_turn_method_is_refused(self) -> None:
        """`assistant_turn` must be a coroutine function."""

        class Blocking(ScriptedBackend):
            def assistant_turn(self, on_text: object = None) -> None:  # type: ignore[override]
                del on_text

        with pytest.raises(ConfigError, match="async def"):
            check_backend(Blocking([]))


class TestConversation:
    """The messages of a conversation and its estimated size."""

    def test_appends(self) -> None:
        """Messages are returned in order, and tool results are a user message."""
        talk = Conversation()
        call, result = ToolUse("c", "t", {}), ToolResult("c", (Text("r"),))
        talk.append_user([Text("hi")])
        talk.append_assistant(Message("assistant", (call,)))
        talk.append_tool_result([result])
        assert talk.transcript() == [user("hi"), Message("assistant", (call,)), Message("user", (result,))]

    def test_load_and_clear(self) -> None:
        """`load` replaces the messages, `clear` removes them, and the system text stays."""
        talk = Conversation()
        talk.append_system("s" * 40, ())
        talk.load([user("u" * 40), assistant("a" * 40)])
        assert (len(talk.transcript()), talk.context_tokens()) == (2, 30)
        talk.clear()
        assert (talk.transcript(), talk.context_tokens()) == ([], 10)

    def test_messages_loaded_twice_count_twice(self) -> None:
        """The size estimate counts each occurrence of a message."""
        talk, message = Conversation(), user("u" * 40)
        for times in (1, 3, 2):
            talk.load([message] * times)
            assert talk.context_tokens() == times * 10

    def test_size_estimate_covers_system_tools_and_messages(self) -> None:
        talk = Conversation()
        talk.append_system("x" * 400, [ToolSpec("t", "y" * 400, {"type": "object"})])
        fixed = talk.context_tokens()
        assert fixed > 200
        talk.append_user([Text("z" * 400)])
        assert talk.context_tokens() == fixed + 100


@pytest.mark.parametrize("limit", [0, 1, 100, 119, 500, 1000, 1999, 2000, 2001])
def test_clip(limit: int) -> None:
    """Cut text is never longer than the limit, and text within the limit is unchanged."""
    text = "a" * 1000 + "b" * 1000
    cut = clip(text, limit, "see the file")
    assert len(cut) <= limit
    assert cut == text if limit >= 2000 else cut == text[:limit] or "characters left out: see the file" in cut
