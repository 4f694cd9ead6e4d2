"""`orch archive`: its requests to the daemon, its output and its errors."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.cli.sessions.archive import ACTIONS
from orch.cli.sessions.export import markdown
from orch.client.failure import CommandError
from orch.render import terminal
from orchestrator.daemon_double import ARCHIVE, REPLY, ROW, Desk, opened

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


def flat(text: str) -> list[str]:
    """Return the lines of `text` with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines()]


class TestList:
    """`orch archive list`."""

    def test_archive_list_has_a_line_per_archive(self, desk: Desk, capsys: Captured) -> None:
        """A line has the id, kind, agent, age, size and title of the archive."""
        assert run(["archive", "list", "reader"]) == 0
        assert desk.asked == [("list_archives", {"ref": "reader"})]
        head, line = flat(capsys.readouterr().out)
        assert head == "ID KIND AGENT AGE MESSAGES TURNS TOKENS"
        assert line.startswith("b0d9f3 turn abc ")
        assert line.endswith(" 2 1 1.2k look")
        run(["archive", "list", "--json"])
        assert json.loads(capsys.readouterr().out) == [ARCHIVE]
        assert desk.asked[1] == ("list_archives", {"ref": None})

    def test_empty_archive_list_says_how_to_turn_archival_on(self, desk: Desk, capsys: Captured) -> None:
        """stdout is empty, and a notice names the setting that enables archival."""
        desk.answers["list_archives"] = []
        assert run(["archive", "list"]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert "archival.enabled" in err
        run(["archive", "list", "--json"])
        assert capsys.readouterr() == ("[]\n", "")

    def test_empty_archive_list_with_archival_on_names_its_rules(self, desk: Desk, capsys: Captured) -> None:
        """If archival is on, the notice names the profile instead of the setting."""
        desk.answers["list_archives"] = []
        desk.answers["daemon_status"] = {"settings": {"archival.enabled": True, "archival.profile": "economy"}}
        assert run(["archive", "list"]) == 0
        assert capsys.readouterr().err == "orch: no archives yet; archival is on, with the profile 'economy'\n"


class TestSearch:
    """`orch archive search`."""

    def test_search_prints_passages_with_archive_and_entry(self, desk: Desk, capsys: Captured) -> None:
        """Each hit has the archive's id, the entry and the archive's title, with the passage on the next line."""
        assert run(["archive", "search", "4711", "--in", "1", "--limit", "3"]) == 0
        assert desk.asked == [("search_archive", {"query": "4711", "ref": "1", "limit": 3})]
        assert capsys.readouterr().out == "b0d9f3 entry 2 (look)\n  port = 4711\n"

    def test_search_on_a_terminal_says_how_to_read_a_hit(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last line is a command for the first hit. Pipes, JSON and empty results have no such line."""
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert run(["archive", "search", "4711"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "To read a hit in full: orch archive read b0d9f3 2"
        assert run(["archive", "search", "4711", "--run", "report"]) == 0
        assert capsys.readouterr().out.endswith(": orch archive read b0d9f3 2 --run report\n")
        assert run(["archive", "search", "4711", "--json"]) == 0
        assert "To read" not in capsys.readouterr().out
        desk.answers["search_archive"] = []
        assert run(["archive", "search", "4711"]) == 0
        assert capsys.readouterr().out == ""

    def test_approximate_hits_are_marked(self, desk: Desk, capsys: Captured) -> None:
        """A hit that is not exact is marked as similar."""
        desk.answers["search_archive"][0] = desk.answers["search_archive"][0] | {"exact": False}
        run(["archive", "search", "4712"])
        assert capsys.readouterr().out.startswith("b0d9f3 entry 2 (look), similar\n")

    def test_search_without_hits_is_no_error(self, desk: Desk, capsys: Captured) -> None:
        """A notice is printed on stderr; with --json, an empty list on stdout."""
        desk.answers["search_archive"] = []
        assert run(["archive", "search", "4712"]) == 0
        assert capsys.readouterr() == ("", "orch: no match in the archives\n")
        assert run(["archive", "search", "4712", "--json"]) == 0
        assert capsys.readouterr() == ("[]\n", "")

    @pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5"])
    @pytest.mark.usefixtures("desk")
    def test_limit_must_be_a_number(self, capsys: Captured, limit: str) -> None:
        """A limit that is not a positive whole number is a usage error that quotes it."""
        assert run(["archive", "search", "x", f"--limit={limit}"]) == 2
        assert repr(limit) in capsys.readouterr().err

    @pytest.mark.usefixtures("desk")
    def test_query_starting_with_a_dash_gets_a_hint(self, capsys: Captured) -> None:
        """The usage error says to write `--` before the query."""
        assert run(["archive", "search", "-x"]) == 2
        assert "orch archive search ... -- QUERY" in capsys.readouterr().err


class TestRead:
    """`orch archive read`."""

    @pytest.mark.parametrize(
        ("entries", "first", "last"), [([], 1, None), (["3"], 3, 3), (["3-7"], 3, 7), (["3-"], 3, None)]
    )
    def test_entries_are_selected_by_number_and_range(
        self, desk: Desk, entries: list[str], first: int, last: int | None
    ) -> None:
        """The selection is empty, a number, a range, or a range without an end."""
        assert run(["archive", "read", "b0d9", *entries]) == 0
        assert desk.asked == [("read_archive", {"id": "b0d9", "first": first, "last": last})]

    def test_entries_have_numbers_and_roles(self, desk: Desk, capsys: Captured) -> None:
        desk.answers["read_archive"] = desk.answers["read_archive"][1:]
        run(["archive", "read", "b0d9", "2"])
        assert capsys.readouterr().out == "[entry 2] assistant\n  port = 4711\n"
        run(["archive", "read", "b0d9", "2", "--json"])
        content = [{"type": "text", "text": "port = 4711"}]
        assert json.loads(capsys.readouterr().out) == [{"entry": 2, "role": "assistant", "content": content}]

    def test_calls_and_results_are_printed_whole(self, desk: Desk, capsys: Captured) -> None:
        """Long lines and results with many lines are not shortened."""
        long = "\n".join("x" * 100 for _ in range(50))
        call = {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "y" * 100}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": long}]}
        desk.answers["read_archive"] = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        run(["archive", "read", "b0d9"])
        out = capsys.readouterr().out
        assert out.count("x" * 100) == 50
        assert "-> read_file " + json.dumps({"path": "y" * 100}) in out

    def test_missing_entry_exits_with_3(self, desk: Desk, capsys: Captured) -> None:
        """The error says which command shows the number of entries."""
        desk.answers["read_archive"] = []
        assert run(["archive", "read", "b0d9", "9-12"]) == 3
        assert capsys.readouterr() == (
            "",
            "orch: archive b0d9 has no entry 9: orch archive list shows how many it has\n",
        )

    @pytest.mark.parametrize("entries", ["0", "x", "7-3", "3-x", "1.5", ""])
    @pytest.mark.usefixtures("desk")
    def test_invalid_entry_selection_is_a_usage_error(self, capsys: Captured, entries: str) -> None:
        """The error gives an example."""
        assert run(["archive", "read", "b0d9", entries]) == 2
        assert "3-7" in capsys.readouterr().err


class TestAsk:
    """`orch archive query` and `ask-all`: questions to holders."""

    def test_archive_ask_equals_orch_query(self, desk: Desk, capsys: Captured) -> None:
        """`archive query` and `query` send the same request and print the same answer."""
        run(["query", "b0d9", "which port?", "--json"])
        run(["archive", "query", "b0d9", "which port?", "--json"])
        one, other = capsys.readouterr().out.splitlines()
        assert one == other
        (asked, params), (again, same) = desk.asked
        assert asked == again == "query"
        assert params | {"request_id": ""} == same | {"request_id": ""}

    def test_several_archives_are_asked_the_same_question(self, desk: Desk, capsys: Captured) -> None:
        """Each answer follows the id of its archive."""
        assert run(["archive", "ask-all", "which port?", "b0d9", "--timeout", "5"]) == 0
        assert desk.asked == [("ask_all", {"refs": ["b0d9"], "prompt": "which port?", "timeout": 5.0})]
        assert capsys.readouterr().out == "b0d9f3:\n4711\n"
        run(["archive", "ask-all", "which port?", "b0d9", "--json"])
        [data] = json.loads(capsys.readouterr().out)
        assert (data["ref"], data["error"]) == ("b0d9f3", None)
        keys = ["id", "query_id", "text", "stop_reason", "usage", "tool_calls", "files_changed", "warning", "denied"]
        assert list(data["reply"]) == keys

    def test_archive_that_cannot_answer_sets_the_exit_code(self, desk: Desk, capsys: Captured) -> None:
        """The error is printed in place of the answer. The exit code is that of the failures, or 1 if they differ."""
        missing = {"ref": "beef", "reply": None, "error": "no agent has the name or id 'beef'", "exit_code": 3}
        desk.answers["ask_all"].append(missing)
        assert run(["archive", "ask-all", "which port?", "b0d9", "beef"]) == 3
        assert capsys.readouterr().out == "b0d9f3:\n4711\n\nbeef:\nerror: no agent has the name or id 'beef'\n"
        desk.answers["ask_all"].append(missing | {"exit_code": 4})
        assert run(["archive", "ask-all", "which port?", "b0d9", "beef", "cafe"]) == 1

    def test_truncated_answer_sets_the_exit_code(self, desk: Desk) -> None:
        """The exit code is 5 for a limit and 1 for other reasons, also if another answer is complete."""
        whole = {"ref": "b0d9", "reply": REPLY, "error": None, "exit_code": 0}
        for stop_reason, code in (("end_turn", 0), ("max_turns", 5), ("cancelled", 1)):
            desk.answers["ask_all"] = [whole, whole | {"reply": REPLY | {"stop_reason": stop_reason}}]
            assert run(["archive", "ask-all", "which port?", "b0d9", "x"]) == code

    def test_all_archives_of_an_agent_are_asked_once(self, desk: Desk) -> None:
        """Every listed archive is asked. Archives that were merged into others are not listed."""
        desk.answers["list_archives"] = [ARCHIVE | {"id": id} for id in ("e1", "t2", "p2")]
        run(["archive", "ask-all", "which port?", "--in", "reader"])
        assert desk.asked[0] == ("list_archives", {"ref": "reader"})
        assert desk.asked[1][1]["refs"] == ["e1", "t2", "p2"]

    @pytest.mark.parametrize("extra", [[], ["b0d9", "--in", "reader"]])
    def test_either_ids_or_an_agent_are_required(self, desk: Desk, capsys: Captured, extra: list[str]) -> None:
        """Neither ids nor an agent, and both together, are usage errors."""
        assert run(["archive", "ask-all", "which port?", *extra]) == 2
        assert "--in REF" in capsys.readouterr().err
        assert desk.asked == []

    def test_agent_without_archives_exits_with_3(self, desk: Desk, capsys: Captured) -> None:
        desk.answers["list_archives"] = []
        assert run(["archive", "ask-all", "which port?", "--in", "reader"]) == 3
        assert "agent reader has no archives" in capsys.readouterr().err


class TestExport:
    """`orch archive export`."""

    def test_archive_export_has_a_json_line_per_archive(self, desk: Desk, capsys: Captured) -> None:
        """Each line has the description of the archive and all its messages."""
        assert run(["archive", "export", "reader"]) == 0
        assert desk.asked == [("list_archives", {"ref": "reader"}), ("read_archive", {"id": "b0d9f3"})]
        [line] = capsys.readouterr().out.splitlines()
        assert json.loads(line) == {"holder": ARCHIVE, "messages": desk.answers["read_archive"]}

    def test_archive_export_file_is_private(self, desk: Desk, capsys: Captured, tmp_path: Path) -> None:
        """Only the user can read the file. A failed export leaves an existing file unchanged."""
        assert run(["archive", "export", "--output", "all.jsonl"]) == 0
        assert capsys.readouterr().out == "1 archive, 2 messages: all.jsonl\n"
        file = tmp_path / "project" / "all.jsonl"
        assert json.loads(file.read_text())["holder"]["id"] == "b0d9f3"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert run(["archive", "export", "--output", "all.jsonl", "--json"]) == 0
        report = {"output": "all.jsonl", "archives": 1, "messages": 2, "unread": {}}
        assert json.loads(capsys.readouterr().out) == report
        desk.answers["read_archive"] = CommandError("AgentNotFoundError", "gone", 3)
        before = file.read_bytes()
        assert run(["archive", "export", "--output", "all.jsonl"]) == 3
        assert file.read_bytes() == before
        assert os.listdir() == ["all.jsonl"]

    @pytest.mark.usefixtures("desk")
    def test_unwritable_export_file_is_named(self, capsys: Captured) -> None:
        assert run(["archive", "export", "--output", "no/such/folder"]) == 1
        assert capsys.readouterr().err == "orch: cannot write no/such/folder: No such file or directory\n"

    def test_damaged_archive_is_skipped_and_exits_with_1(self, desk: Desk, capsys: Captured) -> None:
        """The other archives are exported, and stderr names the damaged archive."""
        desk.answers["list_archives"] = [ARCHIVE | {"id": "bad"}, ARCHIVE]
        desk.answers["read_archive"] = [CommandError("DamagedError", "not what was archived"), []]
        desk.in_turn.add("read_archive")
        assert run(["archive", "export"]) == 1
        out, err = capsys.readouterr()
        assert [json.loads(line)["holder"]["id"] for line in out.splitlines()] == ["b0d9f3"]
        assert err == "orch: archive bad is left out: not what was archived\n"

    def test_archive_export_as_markdown_has_safe_fences(self) -> None:
        """Each archive is a section and each entry a heading. Fences are longer than any fence in a result."""
        result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "```\nx\n```"}]}
        call = {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "x"}}
        found = [
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call]},
            {"role": "user", "content": [result, {"type": "image", "media_type": "image/png", "data": ""}]},
            {"role": "assistant", "content": [{"type": "opaque", "provider": "p", "raw": 1}]},
        ]
        page = markdown(ARCHIVE, found)
        assert page.startswith(
            "# look\n\n`b0d9f3`, turn of agent `abc`, archived 2026-01-01\n\n## Entry 1: user\n\nlook"
        )
        assert '```thinking\nhm\n```\n\nCall of `read_file`:\n\n```json\n{"path":"x"}\n```' in page
        assert "Result:\n\n````text\n```\nx\n```\n````\n\n[image: image/png]" in page

    @pytest.mark.usefixtures("desk")
    def test_markdown_export_goes_to_standard_output(self, capsys: Captured) -> None:
        assert run(["archive", "export", "--format", "md"]) == 0
        assert "## Entry 2: assistant\n\nport = 4711\n" in capsys.readouterr().out


class TestPrune:
    """`orch archive prune`."""

    def test_prune_lists_deleted_archives(self, desk: Desk, capsys: Captured) -> None:
        """One line for each archive is followed by the number of archives and bytes."""
        assert run(["archive", "prune", "--older-than", "30d", "--in", "reader"]) == 0
        assert desk.asked == [("prune_archives", {"older": "30d", "ref": "reader", "dry_run": False})]
        _, line, last = flat(capsys.readouterr().out)
        assert line.startswith("b0d9f3 turn abc ")
        assert last == "deleted 1 archive, 12,345 bytes"
        run(["archive", "prune", "--older-than", "30d", "--json"])
        assert json.loads(capsys.readouterr().out) == desk.answers["prune_archives"]

    def test_dry_run_lists_archives_and_deletes_nothing(self, desk: Desk, capsys: Captured) -> None:
        """The last line says what would be deleted."""
        assert run(["archive", "prune", "--older-than", "30d", "--dry-run"]) == 0
        assert desk.asked == [("prune_archives", {"older": "30d", "ref": None, "dry_run": True})]
        assert capsys.readouterr().out.endswith("\nwould delete 1 archive, 12,345 bytes\n")

    @pytest.mark.parametrize("extra", [[], ["--json"]])
    def test_busy_agent_exits_with_4(self, desk: Desk, capsys: Captured, extra: list[str]) -> None:
        """stderr names the busy agent."""
        desk.answers["prune_archives"] = {"archives": [], "bytes": 0, "busy": {"abc": "agent 'n' is at work"}}
        assert run(["archive", "prune", "--older-than", "30d", *extra]) == 4
        out, err = capsys.readouterr()
        assert out == (
            "deleted 0 archives, 0 bytes\n"
            if not extra
            else f"{json.dumps(desk.answers['prune_archives'], separators=(',', ':'))}\n"
        )
        assert err == "orch: agent 'n' is at work\n"

    def test_prune_requires_an_age(self, desk: Desk, capsys: Captured) -> None:
        """Without an age no request is sent."""
        assert run(["archive", "prune"]) == 2
        assert "--older-than" in capsys.readouterr().err
        assert desk.asked == []


@pytest.mark.parametrize(
    "argv", [["search", "x"], ["ask-all", "x"], ["prune", "--older-than", "1d"]], ids=lambda argv: str(argv[0])
)
def test_two_agents_are_refused(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """A repeated --in is a usage error; the last value does not win silently."""
    assert run(["archive", *argv, "--in", "one", "--in", "other"]) == 2
    assert "--in is given twice" in capsys.readouterr().err
    assert desk.asked == []


class TestGroup:
    """`orch archive` without an action, with an unknown action, and with --help."""

    @pytest.mark.parametrize("action", ACTIONS)
    def test_every_archive_action_has_help_with_an_example(self, capsys: Captured, action: str) -> None:
        assert run(["archive", action, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: orch archive {action}")
        assert "--json" in out
        assert f"example:\n  orch archive {action}" in out
        assert run(["archive", "--help"]) == 0
        assert f"  {action} " in capsys.readouterr().out

    @pytest.mark.parametrize(("argv", "expected"), [([], "no action given"), (["frob"], "unknown action 'frob'")])
    def test_unknown_or_missing_action_lists_all(self, capsys: Captured, argv: list[str], expected: str) -> None:
        """The exit code is 2, and the error lists all actions."""
        assert run(["archive", *argv]) == 2
        err = capsys.readouterr().err
        assert expected in err
        assert ", ".join(ACTIONS) in err

    @pytest.mark.usefixtures("desk")
    def test_json_flag_may_precede_the_action(self, capsys: Captured) -> None:
        assert run(["archive", "--json", "list"]) == 0
        assert json.loads(capsys.readouterr().out) == [ARCHIVE]


HOLDER: Any = ROW | {"kind": "holder", "id": "b0d9f3", "name": "b0d9f3"}


class TestShow:
    """A holder in the list of agents, and the page of a holder."""

    def test_show_prints_record_first_entries_and_questions(self) -> None:
        """The command that reads the rest of the archive is also on the page."""
        held, asked = (
            [{"role": "user", "content": [{"type": "text", "text": text}]}] for text in ("look", "which port?")
        )
        shown = {"agent": HOLDER, "messages": asked, "archive": ARCHIVE, "held": held}
        page = terminal.agent_page(shown)
        assert page.startswith("1  (archive)  b0d9f3\n")
        assert "archive (one turn: 2 messages, 1 turn; it pays):\n  Read: x\n\nentry 1, user:\n  look\n" in page
        assert "1 more: orch archive read b0d9f3 2-\n" in page
        assert page.endswith("was asked:\n\nuser:\n  which port?")

    def test_show_lists_an_archive_once(self) -> None:
        """A holder whose name is its id is listed with the id only."""
        assert flat(terminal.agent_table([HOLDER]))[1].startswith("1 b0d9f3 (archive) idle")
