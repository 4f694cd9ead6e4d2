"""Policy functions of users: valid verdicts, failures, and the combination with other sources."""

from __future__ import annotations

import asyncio
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.policy import PolicyCall, PolicyConfig, PolicySpec, Verdict
from orch_protocol.services.service import AnyService
from orch_worker.policy.policy_callback import PolicyCallback, load_policy_function
from virtual_clock import virtual
from worker.tools.dispatch.test_guard import Root, box, tool_reply

CALL = PolicyCall("bash", {"command": "rm x", "more": ["a"]})
RULES = PolicyConfig()


def no_touching(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
    """Deny calls on the path `no`."""
    return Verdict("deny", reason="hands off") if call.input.get("path") == "no" else Verdict()


def all_mine(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
    """Mark the data of calls on the path `a` as personal."""
    return Verdict(data="personal") if call.input.get("path") == "a" else Verdict()


@pytest.mark.parametrize("is_async", [True, False])
async def test_callback_result_is_the_verdict(is_async: bool) -> None:
    """Sync and async functions receive the call and the rules, and only sync functions run in another thread."""
    seen: list[Any] = []

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:
        seen.append((call, config, threading.current_thread() is threading.main_thread()))
        return Verdict("ask", "local", "so")

    async def judge_async(call: PolicyCall, config: PolicyConfig) -> Verdict:
        return judge(call, config)

    assert await PolicyCallback(judge_async if is_async else judge).evaluate(CALL, RULES) == Verdict(
        "ask", "local", "so"
    )
    assert seen == [(CALL, RULES, is_async)]


class Choice(StrEnum):
    """The approvals of a program as an enum."""

    ASK = "ask"


async def test_strenum_verdict_counts_as_its_text() -> None:
    """Members of a StrEnum in a verdict are converted to plain strings."""
    found = await PolicyCallback(lambda *_: Verdict(Choice.ASK, reason=Choice.ASK)).evaluate(CALL, RULES)  # type: ignore[arg-type]
    assert (found, type(found.approval), type(found.reason)) == (Verdict("ask", reason="ask"), str, str)


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        (None, "returned NoneType, not a Verdict"),
        ("allow", "returned str"),
        (Verdict("maybe"), "whose approval is 'maybe'"),  # type: ignore[arg-type]
        (Verdict("allow", "cloud"), "whose model is 'cloud'"),  # type: ignore[arg-type]
        (Verdict("allow", reason=3), "whose reason is 3"),  # type: ignore[arg-type]
        (Verdict(["deny"]), "whose approval is ['deny']"),  # type: ignore[arg-type]
        (KeyError("k"), "failed: KeyError: 'k'"),
        (StopIteration(), "failed: StopIteration"),
        (SystemExit(1), "failed: SystemExit: 1"),
        (asyncio.CancelledError(), "failed: CancelledError"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_invalid_callback_result_denies(expected: Any, why: str, is_async: bool) -> None:
    """The reason describes the exception or the invalid verdict."""

    def judge(call: PolicyCall, config: PolicyConfig) -> Any:  # noqa: ARG001
        if isinstance(expected, BaseException):
            raise expected
        return expected

    async def judge_async(call: PolicyCall, config: PolicyConfig) -> Any:
        return judge(call, config)

    if is_async and isinstance(expected, StopIteration):
        why = "coroutine raised StopIteration"
    verdict = await PolicyCallback(judge_async if is_async else judge).evaluate(CALL, RULES)
    assert verdict.approval == "deny"
    assert why in verdict.reason


@virtual
async def test_async_callback_that_hangs_denies_at_its_timeout() -> None:
    """An async function that does not return denies the call after exactly the time limit."""

    async def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
        await asyncio.Event().wait()
        return Verdict()

    opinion = PolicyCallback(judge, seconds=5)
    before = asyncio.get_running_loop().time()
    assert "did not return within 5 s" in (await opinion.evaluate(CALL, RULES)).reason
    assert asyncio.get_running_loop().time() == before + 5


async def test_hanging_callback_thread_denies_later_calls_at_once() -> None:
    """While the function still runs for an earlier call, later calls are denied without calling it again."""
    release, calls = threading.Event(), []

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
        calls.append(call)
        release.wait()
        return Verdict()

    opinion = PolicyCallback(judge, seconds=0.01)
    assert "did not return" in (await opinion.evaluate(CALL, RULES)).reason
    assert "still at work on an earlier call" in (await opinion.evaluate(CALL, RULES)).reason
    release.set()
    assert opinion._running is not None
    await opinion._running
    assert len(calls) == 1


async def test_callback_cannot_mutate_the_call() -> None:
    """The function receives a deep copy of the arguments."""

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
        call.input["more"].append("b")
        call.input["command"] = "rm y"
        return Verdict()

    await PolicyCallback(judge).evaluate(CALL, RULES)
    assert CALL.input == {"command": "rm x", "more": ["a"]}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no.such.module:x", "ModuleNotFoundError"),
        ("worker.policy.test_policy_callback:nothing", "AttributeError"),
        ("worker.policy.test_policy_callback:RULES", "must be a function; got PolicyConfig"),
    ],
)
def test_missing_callback_is_an_error_before_the_agent_starts(name: str, why: str) -> None:
    """A policy function that cannot be imported is an error when the toolbox is created."""
    with pytest.raises(ConfigError, match=why):
        load_policy_function(name)
    with pytest.raises(ConfigError):
        box(Path(), PolicySpec(rules=PolicyConfig(function=name)))


class TestInTheGuard:
    """A policy function together with the other sources of the policy."""

    async def test_callback_denial_stops_the_call(self, tmp_path: Path) -> None:
        """The result contains the reason of the function, and calls that the function allows run."""
        toolbox = box(
            tmp_path, PolicySpec(rules=PolicyConfig(function="worker.policy.test_policy_callback:no_touching"))
        )
        assert (await tool_reply(toolbox, path="yes"))[0]
        ran, _, text = await tool_reply(toolbox, path="no")
        assert (ran, "hands off" in text) == (False, True)

    async def test_callback_cannot_relax_other_sources(self, tmp_path: Path) -> None:
        """A denial by a permission applies although the function allows the call."""
        rules = PolicyConfig(function="worker.policy.test_policy_callback:no_touching", permissions={"touch": "deny"})
        ran, _, text = await tool_reply(box(tmp_path, PolicySpec(rules=rules)), path="yes")
        assert (ran, "permissions.touch" in text) == (False, True)

    async def test_callback_can_mark_a_call_as_personal(self, tmp_path: Path) -> None:
        """After the function marks one call as personal, later calls of the turn count as personal too."""
        rules = PolicyConfig(function="worker.policy.test_policy_callback:all_mine", permissions={"touch": "allow"})
        toolbox = box(tmp_path, PolicySpec("cli", rules))
        assert (await tool_reply(toolbox, path="b"))[0]
        await tool_reply(toolbox, path="a")
        _, _, text = await tool_reply(toolbox, path="b")
        assert "data is personal" in text

    async def test_callback_in_the_root_decides_for_workers(self, tmp_path: Path) -> None:
        """The worker asks the root for the verdict, and a call is denied if there is no root."""

        async def root(called: AnyService, params: Any, seconds: float | None = None) -> Any:
            if called.name == "evaluate_policy":
                return no_touching(params, RULES)
            return await Root()(called, params, seconds)

        spec = PolicySpec(asks_root=True)
        toolbox = box(tmp_path, spec, call_root=root)
        assert (await tool_reply(toolbox, path="yes"))[0]
        assert "hands off" in (await tool_reply(toolbox, path="no"))[2]
        assert (
            "could not be asked: cannot call 'evaluate_policy': this tool runs without a root"
            in (await tool_reply(box(tmp_path, spec), path="yes"))[2]
        )
