"""Conversations with custom backends: requests, responses, faults and cancellation."""

# ruff: noqa: ARG002
from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from custom_backends import Blocks, Caller, Echo, Words, Yields
from orch import BackendInfo, CustomBackend, Stop, Text, Thinking, ToolUse, Usage
from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.errors import (
    BackendError,
    BackendTimeoutError,
    BudgetExceededError,
    ConfigError,
    ContextOverflowError,
    RateLimitError,
)
from orch_protocol.core.messages import Image, Message, ToolResult, assistant, text_of, user
from orch_protocol.policy.budget import BudgetAmounts
from orch_worker.backends import make_backend, template_for
from orch_worker.backends.base import check_backend
from orch_worker.backends.custom.conversation import CustomConversation
from orch_worker.backends.models import ModelCatalog, ProviderConfig
from orch_worker.backends.registry import complete, is_remote

NONE = ModelCatalog(providers={}, models={})
LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {}})


def spec_of(model: str, known: ModelCatalog = NONE, **env: str) -> BackendSpec:
    """Return the complete spec of `model`."""
    provider, _, name = model.partition(":")
    return complete(BackendSpec(provider, name), known, env, env)


def talk(backend: CustomBackend, **options: Any) -> CustomConversation:
    """Return a conversation with `backend` that contains one user message."""
    spec = spec_of("custom_backends:Echo")
    made = CustomConversation(BackendSpec("acme", "m", spec.options | options), backend)
    made.append_system("Be brief.", (LOOK,))
    made.append_user((Text("hello"),))
    return made


async def fault_of(*items: Any, kind: type[BackendError] = BackendError) -> str:
    """Return the message of the error that a response with `items` raises."""
    with pytest.raises(kind) as raised:
        await talk(Yields(*items)).assistant_turn()
    return str(raised.value)


def fails(error: BaseException) -> Any:
    """Return an item that raises `error`."""

    async def fail() -> None:
        raise error

    return fail


class TestResponse:
    """Responses that are made from the items of a backend."""

    async def test_text_is_streamed_and_joined(self) -> None:
        """Each piece of text is streamed when it arrives, and the pieces become one block."""
        heard: list[str] = []
        turn = await talk(Echo()).assistant_turn(heard.append)
        assert (heard, turn.message, turn.stop_reason) == (["echo ", "hello"], assistant("echo hello"), "end_turn")

    async def test_reported_usage_and_cost_count(self) -> None:
        """The usage of a response is the last reported usage, including its cost."""
        turn = await talk(Echo()).assistant_turn()
        assert turn.usage == Usage(7, 3, cost_usd=0.25)

    async def test_calls_and_reasoning_of_a_plain_generator(self) -> None:
        """A call makes the stop reason `tool_use`, and pieces of reasoning become one block."""
        turn = await talk(Caller()).assistant_turn()
        thought, found, call = turn.message.content
        assert (thought, found, call) == (
            Thinking("let me look", None, "acme"),
            Text("Looking."),
            ToolUse("c1", "look", {"x": 2}),
        )
        assert turn.stop_reason == "tool_use"

    async def test_a_generator_runs_in_one_thread(self) -> None:
        """All items of a plain generator are produced in one thread, which is not the main thread."""
        threads = set()

        class Threads(CustomBackend):
            def respond(self, request: object) -> Any:
                for _ in range(3):
                    threads.add(threading.get_ident())
                    yield "x"

        await talk(Threads()).assistant_turn()
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    async def test_an_async_generator_runs_in_one_task(self) -> None:
        """A timeout can enclose several items, which requires that they are produced in one task."""

        class Scoped(CustomBackend):
            async def respond(self, request: object) -> Any:
                async with asyncio.timeout(60):
                    yield "a"
                    yield "b"

        assert text_of((await talk(Scoped()).assistant_turn()).message) == "ab"

    async def test_call_ids_and_arguments_are_repaired(self) -> None:
        """Missing and repeated ids are replaced, JSON text is parsed, and invalid JSON is passed to the tool."""
        items = ToolUse("", "look", {}), ToolUse("a", "look", '{"x": 1}'), ToolUse("a", "look", "{broken")  # type: ignore[arg-type]
        turn = await talk(Yields(*items)).assistant_turn()
        ids = [block.id for block in turn.message.content]  # type: ignore[union-attr]
        assert len({*ids, ""}) == 4
        assert [block.input for block in turn.message.content] == [{}, {"x": 1}, {"invalid_json": "{broken"}]  # type: ignore[union-attr]

    async def test_stop_reason(self) -> None:
        """A `Stop` item sets the stop reason of the response."""
        assert (await talk(Yields("cut", Stop("max_tokens"))).assistant_turn()).stop_reason == "max_tokens"

    async def test_generator_without_items_is_an_empty_response(self) -> None:
        """A generator that yields no item gives a response without content."""
        turn = await talk(Yields()).assistant_turn()
        assert (turn.message.content, turn.stop_reason) == ((), "end_turn")

    async def test_unpaired_surrogates_are_replaced(self) -> None:
        assert text_of((await talk(Yields("a\ud800")).assistant_turn()).message) == "a\ufffd"


class TestUsage:
    """Tokens, costs, prices and budgets."""

    async def test_tokens_are_estimated_without_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without reported usage, tokens are estimated without a warning, and the cost is unknown."""
        turn = await talk(Yields("x" * 400)).assistant_turn()
        assert turn.usage.input_tokens > 0
        assert turn.usage.output_tokens > 50
        assert not turn.usage.cost_known
        assert "unusable" not in capsys.readouterr().out

    @pytest.mark.parametrize("count", [-5, 10**12, "many", None, True])
    async def test_wrong_counts_are_clamped_or_estimated(self, count: Any) -> None:
        """An invalid token count becomes a count within the context window, and the cost is unknown."""
        turn = await talk(Yields("x", Usage(count, 1))).assistant_turn()
        assert 0 <= turn.usage.input_tokens <= 32_768
        assert not turn.usage.cost_known

    @pytest.mark.parametrize("usd", [math.nan, math.inf, -1.0, "1"])
    async def test_wrong_costs_are_ignored(self, usd: Any) -> None:
        """A reported cost that is not a valid amount of money counts as unknown."""
        usage = (await talk(Yields("x", Usage(1, 1, cost_usd=usd))).assistant_turn()).usage
        assert (usage.cost_usd, usage.cost_known) == (0.0, False)

    async def test_token_count_of_the_backend_is_used(self) -> None:
        """`count_tokens` of the backend replaces the estimate."""
        words = talk(Words())
        few = words.context_tokens()
        words.append_user((Text("one two three"),))
        assert words.context_tokens() - few == 3 + 4  # 4 tokens are the frame of a message
        assert words.info() == BackendInfo("acme", "m", 500)

    async def test_backend_without_vision_gets_texts_of_images(self) -> None:
        """With `images=False` in `info`, an image is replaced by a text that describes it."""

        class Blind(Yields):
            def info(self) -> BackendInfo:
                return BackendInfo("acme", "m", images=False)

        blind = talk(backend := Blind("x"))
        blind.append_user(user(["look", Image("image/png", "", "a.png")]).content)
        await blind.assistant_turn()
        assert not blind.info().images
        text = text_of(backend.requests[0].messages[-1])
        assert text.endswith("look\n\n[image: a.png; not shown: this model does not accept images]")

    @pytest.mark.parametrize("wrong", [-1, 1.5, None, 10**9, ZeroDivisionError("x")])
    def test_a_wrong_token_count_is_replaced_by_an_estimate(
        self, wrong: object, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The first invalid count is reported once, and `count_tokens` is not called again."""

        class Wrong(Words):
            def count_tokens(self, text: str) -> int:
                if isinstance(wrong, Exception):
                    raise wrong
                return wrong  # type: ignore[return-value]

        assert talk(Wrong()).context_tokens() == talk(Echo()).context_tokens()
        assert capsys.readouterr().out.count("acme:m: count_tokens") == 1

    async def test_a_budget_limits_the_response(self) -> None:
        """The reservation limits `max_tokens`, and a response that reaches the limit has the stop reason `budget`."""
        backend = Yields("x", Stop("max_tokens"))
        made = talk(backend, output=8000)
        minimum = made.estimate_cost(priced=False).minimum.tokens
        made.reserved = BudgetAmounts(tokens=minimum + 100)
        turn = await made.assistant_turn()
        assert 1000 <= backend.requests[0].max_tokens < 8000
        assert turn.stop_reason == "budget"
        made.reserved = BudgetAmounts(tokens=10)
        with pytest.raises(BudgetExceededError):
            await made.assistant_turn()

    async def test_listed_prices_apply_to_reported_tokens(self) -> None:
        """The prices in the spec apply to the reported tokens."""
        made = talk(Yields("x", Usage(1000, 1000)), prices=[{"input": 1.0, "output": 2.0}], price_known=True)
        assert (await made.assistant_turn()).usage == Usage(1000, 1000, cost_usd=0.003)


class TestRequest:
    """Requests that a backend receives."""

    async def test_conversation(self) -> None:
        """Roles alternate, each call has its result, and the tail is at the end of the last message."""
        backend = Yields("x")
        made = talk(backend, body={"k": 1})
        made.append_assistant(Message("assistant", (ToolUse("c", "look", {}),)))
        made.append_tool_result((ToolResult("c", (Text("r"),)),))
        made.append_user((Text("and?"),))
        made.tail = "It is noon."
        await made.assistant_turn()
        request = backend.requests[0]
        assert (request.system, request.tools, request.max_tokens, request.thinking) == ("Be brief.", (LOOK,), 0, "")
        assert [message.role for message in request.messages] == ["user", "assistant", "user"]
        assert request.messages[2] == Message(
            "user", (ToolResult("c", (Text("r"),)), Text("and?"), Text("It is noon."))
        )
        assert request.cancelled.is_set()
        assert made.transcript()[-1] == user("and?")

    async def test_options(self) -> None:
        """An instance gets the model, the keys and the body of its provider, and serves all specs of the process."""
        provider = ProviderConfig(api="custom_backends:Words", keys=("ACME_KEY",), body={"k": 1}, free=True)
        known = ModelCatalog(providers={"acme": provider}, models={})
        spec = spec_of("acme:large", known, ACME_KEY="canary-key", OTHER_KEY="x")
        made, again = (make_backend(spec, {"ACME_KEY": "canary-key", "OTHER_KEY": "x"}) for _ in range(2))
        made.append_user((Text("hi"),))
        turn = await made.assistant_turn()
        assert text_of(turn.message) == "large ['ACME_KEY'] {'k': 1}"
        assert turn.usage.cost_known
        assert made._backend is again._backend  # type: ignore[attr-defined]
        assert "canary" not in repr(made._backend.options)  # type: ignore[attr-defined]

    def test_conversation_is_a_backend(self) -> None:
        """A conversation implements the backend contract, uses a lean worker, and is remote unless marked local."""
        spec = spec_of("custom_backends:Echo:large")
        check_backend(made := make_backend(spec, {}))
        assert (made.info(), template_for(spec)) == (BackendInfo("custom_backends", "Echo:large", 32_768), "lean")
        assert made._backend.options.model == "large"  # type: ignore[attr-defined]
        assert is_remote(spec)
        here = ModelCatalog(
            providers={"acme": ProviderConfig(api="custom_backends:Echo", flags={"local": True})}, models={}
        )
        assert not is_remote(spec_of("acme", here))

    async def test_an_empty_conversation(self) -> None:
        """A request without a message raises BackendError."""
        with pytest.raises(BackendError, match="conversation is empty"):
            await make_backend(spec_of("custom_backends:Echo"), {}).assistant_turn()


class TestFaults:
    """Errors in the code of a backend."""

    @pytest.mark.parametrize(
        "item",
        [None, 5, b"x", {"text": "x"}, Text(5), Thinking(None), ToolUse("a", "", {}), ToolUse("a", "x", [1])],  # type: ignore[arg-type]
    )
    async def test_invalid_items(self, item: Any) -> None:
        """An item with a wrong type or invalid fields raises an error that names the type."""
        assert f"acme:m: respond yielded an invalid item of type {type(item).__name__}" in await fault_of(item)

    async def test_arguments_that_json_cannot_represent(self) -> None:
        """A call whose arguments cannot be stored as JSON raises an error."""
        assert "a block of the response" in await fault_of(ToolUse("a", "look", {"x": object()}))

    async def test_invalid_stop_reason(self) -> None:
        """A stop reason that only a turn can have is refused."""
        assert "'cancelled'; it must be one of" in await fault_of(Stop("cancelled"))

    async def test_a_response_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A response with more than the maximum number of characters raises an error."""
        monkeypatch.setattr("orch_worker.backends.custom.conversation.MAX_CHARACTERS", 1000)
        assert "more than 1,000 characters" in await fault_of(*["x" * 400] * 3)

    @pytest.mark.parametrize("error", [KeyError("weights"), SystemExit(3), asyncio.CancelledError(), TimeoutError()])
    async def test_exceptions(self, error: BaseException) -> None:
        """Any exception of a backend becomes a BackendError that names the type of the exception."""
        assert f"acme:m: respond raised {'' if isinstance(error, Exception) else 'RuntimeError: '}" in (
            found := await fault_of("x", fails(error))
        )
        assert type(error).__name__ in found

    async def test_stop_iteration_of_a_generator(self) -> None:
        """StopIteration that a generator raises is an error and not the end of the response."""

        class Stops(CustomBackend):
            def respond(self, request: object) -> Any:
                yield "x"
                raise StopIteration

        with pytest.raises(BackendError, match="respond raised RuntimeError"):
            await talk(Stops()).assistant_turn()

    async def test_overflow_is_passed_on(self) -> None:
        """ContextOverflowError is not wrapped, so that the conversation can be compacted."""
        assert "too long" in await fault_of(fails(ContextOverflowError("too long")), kind=ContextOverflowError)

    async def test_rate_limits_are_waited_for(self) -> None:
        """A request is repeated after each RateLimitError, and `on_retry` is called each time."""
        retries: list[object] = []
        left = [RateLimitError("slow down")] * 2

        class Busy(CustomBackend):
            def respond(self, request: object) -> Any:
                if left:
                    raise left.pop()
                yield "done"

        made = talk(Busy())
        made.on_retry = retries.append

        async def sleep(_: float) -> None:
            pass

        made.sleep = sleep
        assert text_of((await made.assistant_turn()).message) == "done"
        assert len(retries) == 2

    async def test_silence_has_a_deadline(self) -> None:
        """A backend that yields no item in time raises BackendTimeoutError and is closed."""

        async def forever() -> None:
            await asyncio.Event().wait()

        backend = Yields("x", forever)
        made = talk(backend, first_content_seconds=0.01)
        with pytest.raises(BackendTimeoutError, match=r"nothing for 0\.01 s"):
            await made.assistant_turn()
        assert backend.closed.is_set()

    async def test_keys_are_masked(self) -> None:
        """An error message that contains an API key is shown without the key."""
        backend = Yields(fails(ValueError("bad key canary-key")))
        backend.options = replace(backend.options, keys={"ACME_KEY": "canary-key"})
        with pytest.raises(BackendError) as raised:
            await talk(backend).assistant_turn()
        assert "canary" not in str(raised.value)

    @pytest.mark.parametrize("answer", ["text", 5, None])
    async def test_returned_value_that_is_no_list_is_an_error(self, answer: object) -> None:
        """`respond` must yield items, and a returned text, number or None is an error."""

        class Returns(CustomBackend):
            def respond(self, request: object) -> Any:
                return answer

        with pytest.raises(BackendError, match="instead of yielding"):
            await talk(Returns()).assistant_turn()

    async def test_response_can_be_a_list(self) -> None:
        """`respond` can return a list of items instead of yielding them."""

        class Lists(CustomBackend):
            def respond(self, request: object) -> Any:
                return ["a", "b"]

        assert text_of((await talk(Lists()).assistant_turn()).message) == "ab"

    @pytest.mark.parametrize(
        "about",
        [None, ("a", "b", 1), BackendInfo("a b", "m"), BackendInfo("a", 5), BackendInfo("a", "m", -1)],  # type: ignore[arg-type]
    )
    def test_wrong_info(self, about: Any) -> None:
        """A conversation with a backend whose `info` returns invalid values raises ConfigError."""

        class Wrong(Echo):
            def info(self) -> BackendInfo:
                return about  # type: ignore[no-any-return]

        with pytest.raises(ConfigError, match=r"Wrong\.info\(\) must return BackendInfo"):
            talk(Wrong())

    @pytest.mark.parametrize(
        ("model", "why"),
        [
            (
                "custom_backends:Unready",
                "cannot create the backend custom_backends:Unready: FileNotFoundError",
            ),
            ("custom_backends:Missing", "cannot import the backend .*AttributeError"),
            ("custom_backends.no:Missing", "cannot import the backend .*ModuleNotFoundError.*PYTHONPATH"),
            ("custom_backends:Usage", "must be a subclass of orch.CustomBackend"),
            ("custom_backends:Coroutine", "without `yield`"),
            ("custom_backends:Empty", "cannot create the backend .*abstract method"),
        ],
    )
    def test_classes_that_cannot_be_used(self, model: str, why: str) -> None:
        """A class that cannot be loaded raises ConfigError with the cause before a request is made."""
        with pytest.raises(ConfigError, match=why):
            make_backend(spec_of(model), {})


class TestCancellation:
    """Canceled responses."""

    async def test_an_async_generator_is_closed(self) -> None:
        """Canceling closes the generator and sets `cancelled`, and usage received before counts as lost."""
        begun = asyncio.Event()

        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        backend = Yields("x", Usage(5, 1), forever)
        made = talk(backend)
        asking = asyncio.create_task(made.assistant_turn())
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert backend.closed.is_set()
        assert backend.requests[0].cancelled.is_set()
        assert made.lost() == Usage(5, 1, cost_known=False)
        assert made.stuck() == ""

    async def test_a_thread_that_does_not_end_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """While the thread of an abandoned response runs, the conversation is stuck and refuses requests."""
        monkeypatch.setattr("orch_worker.backends.custom.stream.LEAVE_SECONDS", 0.01)
        heard = asyncio.Event()
        made = talk(Blocks())
        asking = asyncio.create_task(made.assistant_turn(lambda _: heard.set()))
        await heard.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert made.stuck() == "respond of acme:m"
        with pytest.raises(BackendError, match="was abandoned and has not ended"):
            await made.assistant_turn()
        Blocks.release.set()
        assert made._abandoned is not None
        await asyncio.wait((made._abandoned,))
        assert made.stuck() == ""
        assert text_of((await made.assistant_turn()).message) == "begunreleased"
