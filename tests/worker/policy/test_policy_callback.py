"""A function of the user's as a source of the policy: what counts as its verdict, and what as a no."""

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
from worker.tools.dispatch.test_guard import Root, box, told

CALL = PolicyCall("bash", {"command": "rm x", "more": ["a"]})
RULES = PolicyConfig()


def no_touching(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
    """Deny everything that `touch` would do to a file called `no`."""
    return Verdict("deny", reason="hands off") if call.input.get("path") == "no" else Verdict()


def all_mine(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
    """Say that `a` is personal."""
    return Verdict(data="personal") if call.input.get("path") == "a" else Verdict()


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_function_returns_is_its_verdict(is_async: bool) -> None:
    """A function, async or not, is told of the call and the rules, and its verdict is taken as it is."""
    seen: list[Any] = []

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:
        seen.append((call, config, threading.current_thread() is threading.main_thread()))
        return Verdict("ask", "local", "so")

    async def judge_async(call: PolicyCall, config: PolicyConfig) -> Verdict:
        return judge(call, config)

    assert await PolicyCallback(judge_async if is_async else judge).of(CALL, RULES) == Verdict("ask", "local", "so")
    assert seen == [(CALL, RULES, is_async)]


class Choice(StrEnum):
    """What a program may call its answers."""

    ASK = "ask"


async def test_a_verdict_of_texts_of_another_class_counts() -> None:
    """A member of a StrEnum says what its text says, and goes on as that."""
    said = await PolicyCallback(lambda *_: Verdict(Choice.ASK, reason=Choice.ASK)).of(CALL, RULES)  # type: ignore[arg-type]
    assert (said, type(said.approval), type(said.reason)) == (Verdict("ask", reason="ask"), str, str)


@pytest.mark.parametrize(
    ("said", "why"),
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
async def test_whatever_is_no_verdict_is_a_no(said: Any, why: str, is_async: bool) -> None:
    """An exception, nothing, another type and values that do not exist all deny, and say which."""

    def judge(call: PolicyCall, config: PolicyConfig) -> Any:  # noqa: ARG001
        if isinstance(said, BaseException):
            raise said
        return said

    async def judge_async(call: PolicyCall, config: PolicyConfig) -> Any:
        return judge(call, config)

    if is_async and isinstance(said, StopIteration):
        why = "coroutine raised StopIteration"
    verdict = await PolicyCallback(judge_async if is_async else judge).of(CALL, RULES)
    assert verdict.approval == "deny"
    assert why in verdict.reason


@virtual
async def test_a_function_that_does_not_return_is_a_no_in_time() -> None:
    """An async function has its seconds, then the call is denied and the next one is asked about anew."""

    async def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
        await asyncio.Event().wait()
        return Verdict()

    opinion = PolicyCallback(judge, seconds=5)
    before = asyncio.get_running_loop().time()
    assert "did not return within 5 s" in (await opinion.of(CALL, RULES)).reason
    assert asyncio.get_running_loop().time() == before + 5


async def test_a_thread_that_does_not_come_back_holds_nobody() -> None:
    """A function that hangs denies its call in time, and others at once, until it has returned."""
    release, calls = threading.Event(), []

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
        calls.append(call)
        release.wait()
        return Verdict()

    opinion = PolicyCallback(judge, seconds=0.01)
    assert "did not return" in (await opinion.of(CALL, RULES)).reason
    assert "still at work on an earlier call" in (await opinion.of(CALL, RULES)).reason
    release.set()
    assert opinion._running is not None
    await opinion._running
    assert len(calls) == 1


async def test_a_function_cannot_change_what_runs() -> None:
    """It is shown a copy of the arguments, down to the innermost list."""

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
        call.input["more"].append("b")
        call.input["command"] = "rm y"
        return Verdict()

    await PolicyCallback(judge).of(CALL, RULES)
    assert CALL.input == {"command": "rm x", "more": ["a"]}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no.such.module:x", "ModuleNotFoundError"),
        ("worker.policy.test_policy_callback:nothing", "AttributeError"),
        ("worker.policy.test_policy_callback:RULES", "must be a function; got PolicyConfig"),
    ],
)
def test_a_function_that_is_not_there_is_an_error(name: str, why: str) -> None:
    """What cannot be imported is said before the agent is there, with what to do."""
    with pytest.raises(ConfigError, match=why):
        load_policy_function(name)
    with pytest.raises(ConfigError):
        box(Path(), PolicySpec(rules=PolicyConfig(function=name)))


class TestInTheGuard:
    """The function beside the other sources."""

    async def test_its_no_counts(self, tmp_path: Path) -> None:
        """What it denies is not run, with its reason; what it allows runs."""
        toolbox = box(
            tmp_path, PolicySpec(rules=PolicyConfig(function="worker.policy.test_policy_callback:no_touching"))
        )
        assert (await told(toolbox, path="yes"))[0]
        ran, _, text = await told(toolbox, path="no")
        assert (ran, "hands off" in text) == (False, True)

    async def test_it_makes_nothing_milder(self, tmp_path: Path) -> None:
        """What another source denies stays denied, whatever the function says."""
        rules = PolicyConfig(function="worker.policy.test_policy_callback:no_touching", permissions={"touch": "deny"})
        ran, _, text = await told(box(tmp_path, PolicySpec(rules=rules)), path="yes")
        assert (ran, "permissions.touch" in text) == (False, True)

    async def test_what_it_calls_personal_counts_as_that(self, tmp_path: Path) -> None:
        """After a call that the function says touches personal data, others of the turn are held to that."""
        rules = PolicyConfig(function="worker.policy.test_policy_callback:all_mine", permissions={"touch": "allow"})
        toolbox = box(tmp_path, PolicySpec("cli", rules))
        assert (await told(toolbox, path="b"))[0]
        await told(toolbox, path="a")
        _, _, text = await told(toolbox, path="b")
        assert "data is personal" in text

    async def test_the_root_is_asked_where_the_function_is_there(self, tmp_path: Path) -> None:
        """A function in the root judges with the same effect, and a root that cannot be asked denies."""

        async def root(called: AnyService, params: Any, seconds: float | None = None) -> Any:
            if called.name == "evaluate_policy":
                return no_touching(params, RULES)
            return await Root()(called, params, seconds)

        spec = PolicySpec(asks_root=True)
        toolbox = box(tmp_path, spec, call_root=root)
        assert (await told(toolbox, path="yes"))[0]
        assert "hands off" in (await told(toolbox, path="no"))[2]
        assert (
            "could not be asked: cannot call 'evaluate_policy': this tool runs without a root"
            in (await told(box(tmp_path, spec), path="yes"))[2]
        )
