"""`orch.policy.policy` returns the verdict of the rules on a call of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import Config, ConfigError, PolicyCall, PolicyConfig, Verdict
from orch.policy import policy
from orch_protocol.core.taint import BITS, TaintLabel
from orchestrator.root_double import opened

RULES = PolicyConfig(denied_paths=("*.pem",), permissions={"bash": "ask"}, personal_paths=("/m/mine",))


@pytest.mark.parametrize(
    ("call", "options", "expected"),
    [
        (PolicyCall("read_file", {"path": "a"}), {}, "allow"),
        (PolicyCall("read_file", {"path": "a.pem"}), {}, "deny"),
        (PolicyCall("read_file", {}, paths=("a.pem",)), {}, "deny"),
        (PolicyCall("bash", {"command": "true"}), {}, "ask"),
        (PolicyCall("bash", {"command": "cat *.pem"}, folder="/nowhere"), {}, "deny"),
        (PolicyCall("read_file", {"path": "~/.ssh/id"}), {}, "ask"),
        (PolicyCall("bash", {"command": "true", "credentials": True}), {}, "ask"),
        (PolicyCall("read_file", {"path": "a"}, folder="/m/mine"), {}, "allow"),
        (PolicyCall("read_file", {"path": "a"}, folder="/m/mine"), {"channel": "person"}, "ask"),
        (PolicyCall("read_file", {"path": "a"}, data="personal"), {"channel": "person"}, "ask"),
        (PolicyCall("write_file", {"path": "a"}), {"channel": "person"}, "allow"),
        (PolicyCall("write_file", {"path": "a"}), {"channel": "cli"}, "ask"),
        (PolicyCall("write_file", {"path": "a"}), {"planning": True}, "deny"),
        (PolicyCall("a_tool_of_mine", {"path": "/m/mine/a"}), {"channel": "cli"}, "ask"),
    ],
    ids=str,
)
def test_rules_give_a_verdict(call: PolicyCall, options: dict[str, Any], expected: str) -> None:
    """The verdict depends on the path, the tool, the data, the channel and the mode."""
    assert policy(call, RULES, **options).approval == expected


def test_reason_and_data_are_reported() -> None:
    """The verdict contains the kind of data that restricts the model."""
    verdict = policy(PolicyCall("read_file", {"path": "/m/mine/a"}), RULES, channel="person")
    assert verdict == Verdict("ask", "local", "read_file would read where data is personal", "personal")


def test_link_to_a_denied_file_is_denied(tmp_path: Path) -> None:
    """The target of a link counts, in arguments and in `paths`."""
    (tmp_path / "key.pem").touch()
    (tmp_path / "innocent").symlink_to("key.pem")
    inputs = [PolicyCall("read_file", {"path": "innocent"}, folder=str(tmp_path))]
    inputs.append(PolicyCall("read_file", {}, paths=("innocent",), folder=str(tmp_path)))
    assert [policy(call, RULES).approval for call in inputs] == ["deny", "deny"]


def test_labels_of_the_conversation_count() -> None:
    """A call that acts needs approval after untrusted and sensitive content."""
    marks = tuple(TaintLabel(bit, "x") for bit in BITS if bit != "acts")
    call = PolicyCall("write_file", {"path": "a", "content": "b"})
    assert policy(call, RULES).approval == "allow"
    marked = PolicyCall("write_file", {"path": "a", "content": "b"}, marks=marks)
    assert policy(marked, RULES).approval == "ask"


@pytest.mark.parametrize(
    ("args", "options", "match"),
    [
        (({"tool": "bash"}, RULES), {}, "takes a PolicyCall and a PolicyConfig; got dict and PolicyConfig"),
        ((PolicyCall("bash", {}), Config()), {}, "got PolicyCall and Config"),
        (
            (PolicyCall("bash", {}), RULES),
            {"channel": "mail"},
            "'mail': choose one of api, person, cli",
        ),
    ],
    ids=["call", "config", "channel"],
)
def test_invalid_arguments_are_refused(args: Any, options: Any, match: str) -> None:
    """Arguments of a wrong type and an unknown channel raise ConfigError."""
    with pytest.raises(ConfigError, match=match):
        policy(*args, **options)


async def test_verdict_is_the_one_of_agents(tmp_path: Path) -> None:
    """A policy function that calls `policy` gets the verdict that decides about the call."""
    verdicts: list[Verdict] = []

    def judge(call: PolicyCall, config: PolicyConfig) -> Verdict:
        verdicts.append(policy(call, config))
        return Verdict()

    for name in ("a", "b.pem"):
        (tmp_path / name).write_text("x")
    calls = [{"tool": "read_file", "input": {"path": path}} for path in ("a", "b.pem", "a")]
    async with opened(tmp_path / "home", config=Config(policy=RULES), policy=judge) as world:
        agent = await world.scripted(*calls, "done", tools=["read_file"], cwd=tmp_path)
        assert (await agent.query("go")).tool_calls == 2
    assert [each.approval for each in verdicts] == ["allow", "deny", "allow"]
