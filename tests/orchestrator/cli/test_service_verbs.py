"""Commands that the CLI creates from service definitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch.cli import VERBS, run, service_verbs
from orch.client.failure import CommandError
from orch_protocol.services import verbs
from orch_protocol.services.verbs import Verb, VerbArgument, flag, option
from orchestrator.daemon_double import Desk, opened

Captured = pytest.CaptureFixture[str]


@pytest.fixture(name="desk")
def _desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    return opened(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "verb", [each for verbs in verbs.VERBS.values() for each in verbs], ids=lambda each: each.words
)
def test_every_service_verb_has_help(capsys: Captured, verb: Verb) -> None:
    """The help text has the description, the example and each argument."""
    assert run([*verb.words.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert verb.example in out
    assert verb.description in " ".join(out.split())
    for argument in verb.arguments:
        assert (f"--{argument.name.replace('_', '-')}" if argument.option else argument.name.upper()) in out


@pytest.mark.parametrize("verb", ["checkout", "branch", "label", "fork"])
def test_help_of_entries_describes_turn_numbers(capsys: Captured, verb: str) -> None:
    assert run(["session", verb, "--help"]) == 0
    assert "turn:N" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["list", "show", "pin", "unpin", "prune"])
def test_workspace_help_uses_the_term_of_the_docs(capsys: Captured, verb: str) -> None:
    """The term for an item of a workspace is "object"."""
    assert run(["workspace", verb, "--help"]) == 0
    assert "artifact" not in capsys.readouterr().out


def test_service_definition_becomes_a_verb(monkeypatch: pytest.MonkeyPatch, desk: Desk, capsys: Captured) -> None:
    """Arguments become parameters, options that were not given are left out, and the result is printed."""
    sample = Verb(
        "sample",
        "stop an agent",
        "orch sample 1",
        VerbArgument("refs", "agents", "agent", name="ref", many=True),
        flag("dry_run", "only print"),
        option("note.text", "why", "text", default="no reason"),
        prints=("ids",),
    )
    monkeypatch.setattr(verbs, "VERBS", {"kill_sample": (sample,)})
    monkeypatch.setitem(VERBS, "sample", ("orch.cli.service_verbs", sample.summary))
    monkeypatch.setattr(service_verbs, "VERBS", {"sample": service_verbs.actions("")["sample"][1]})
    desk.answers["kill_sample"] = {"ids": ["a", "b"]}
    assert run(["sample", "1", "2"]) == 0
    assert capsys.readouterr().out == "a\nb\n"
    assert desk.asked[-1] == ("kill_sample", {"refs": ["1", "2"], "note": {"text": "no reason"}})
    assert run(["sample", "1", "--dry-run", "--note", "-", "--json"]) == 2  # the option is called --text
    assert run(["sample", "1", "--dry-run", "--text", "tests", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ids": ["a", "b"]}
    assert desk.asked[-1] == ("kill_sample", {"refs": ["1"], "dry_run": True, "note": {"text": "tests"}})


def test_list_results_are_tables(desk: Desk, capsys: Captured) -> None:
    """Each result is a row. An empty list prints nothing."""
    assert run(["session", "meta", "get", "reader"]) == 0
    assert capsys.readouterr().out.splitlines() == ["ENTRY  CUSTOM_TYPE  DATA", 'e7     progress     {"page":7}']
    desk.answers["list_session_metadata"] = []
    assert run(["session", "meta", "get", "reader"]) == 0
    assert capsys.readouterr().out == ""


def test_service_errors_set_the_exit_code(desk: Desk, capsys: Captured) -> None:
    desk.answers["kill"] = CommandError("AgentNotFoundError", "no agent 'x'", 3)
    assert run(["kill", "x"]) == 3
    assert "no agent 'x'" in capsys.readouterr().err
