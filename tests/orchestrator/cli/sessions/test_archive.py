"""`orch archive`: what is asked of the daemon, what is printed, how it fails."""

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
    """What there is."""

    def test_a_line_an_archive(self, desk: Desk, capsys: Captured) -> None:
        """With its id, kind, agent and size, and what it is about."""
        assert run(["archive", "list", "reader"]) == 0
        assert desk.asked == [("list_archives", {"ref": "reader"})]
        head, line = flat(capsys.readouterr().out)
        assert head == "ID KIND AGENT AGE MESSAGES TURNS TOKENS"
        assert line.startswith("b0d9f3 turn abc ")
        assert line.endswith(" 2 1 1.2k look")
        run(["archive", "list", "--json"])
        assert json.loads(capsys.readouterr().out) == [ARCHIVE]
        assert desk.asked[1] == ("list_archives", {"ref": None})

    def test_no_archives(self, desk: Desk, capsys: Captured) -> None:
        """Nothing is printed, and people are told what turns archival on."""
        desk.answers["list_archives"] = []
        assert run(["archive", "list"]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert "archival.enabled" in err
        run(["archive", "list", "--json"])
        assert capsys.readouterr() == ("[]\n", "")

    def test_no_archives_yet(self, desk: Desk, capsys: Captured) -> None:
        """Where archival is on already, people are told that, and by what it goes; not to turn it on."""
        desk.answers["list_archives"] = []
        desk.answers["daemon_status"] = {"settings": {"archival.enabled": True, "archival.profile": "economy"}}
        assert run(["archive", "list"]) == 0
        assert capsys.readouterr().err == "orch: nothing is archived yet; archival is on, with the profile 'economy'\n"


class TestSearch:
    """Where something stands."""

    def test_a_passage_with_its_entry(self, desk: Desk, capsys: Captured) -> None:
        """The id, the entry, what the archive is about, and the passage below."""
        assert run(["archive", "search", "4711", "--in", "1", "--limit", "3"]) == 0
        assert desk.asked == [("search_archive", {"query": "4711", "ref": "1", "limit": 3})]
        assert capsys.readouterr().out == "b0d9f3 entry 2 (look)\n  port = 4711\n"

    def test_what_only_resembles_it(self, desk: Desk, capsys: Captured) -> None:
        """Is said to."""
        desk.answers["search_archive"][0] = desk.answers["search_archive"][0] | {"exact": False}
        run(["archive", "search", "4712"])
        assert capsys.readouterr().out.startswith("b0d9f3 entry 2 (look), similar\n")

    def test_nothing_found(self, desk: Desk, capsys: Captured) -> None:
        """Is no error: people are told, scripts get an empty list."""
        desk.answers["search_archive"] = []
        assert run(["archive", "search", "4712"]) == 0
        assert capsys.readouterr() == ("", "orch: nothing in the archives resembles that\n")
        assert run(["archive", "search", "4712", "--json"]) == 0
        assert capsys.readouterr() == ("[]\n", "")

    @pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5"])
    @pytest.mark.usefixtures("desk")
    def test_a_limit_is_a_number(self, capsys: Captured, limit: str) -> None:
        """Anything else is a usage error that repeats it."""
        assert run(["archive", "search", "x", f"--limit={limit}"]) == 2
        assert repr(limit) in capsys.readouterr().err

    @pytest.mark.usefixtures("desk")
    def test_a_text_with_a_dash(self, capsys: Captured) -> None:
        """Taken for an option, what to do is said."""
        assert run(["archive", "search", "-x"]) == 2
        assert "orch archive search ... -- QUERY" in capsys.readouterr().err


class TestRead:
    """Entries as they were."""

    @pytest.mark.parametrize(
        ("entries", "first", "last"), [([], 1, None), (["3"], 3, 3), (["3-7"], 3, 7), (["3-"], 3, None)]
    )
    def test_which_entries(self, desk: Desk, entries: list[str], first: int, last: int | None) -> None:
        """All, one, some, or all from one on."""
        assert run(["archive", "read", "b0d9", *entries]) == 0
        assert desk.asked == [("read_archive", {"id": "b0d9", "first": first, "last": last})]

    def test_numbers_and_roles(self, desk: Desk, capsys: Captured) -> None:
        """Each entry has its number, in JSON too."""
        desk.answers["read_archive"] = desk.answers["read_archive"][1:]
        run(["archive", "read", "b0d9", "2"])
        assert capsys.readouterr().out == "[entry 2] assistant\n  port = 4711\n"
        run(["archive", "read", "b0d9", "2", "--json"])
        content = [{"type": "text", "text": "port = 4711"}]
        assert json.loads(capsys.readouterr().out) == [{"entry": 2, "role": "assistant", "content": content}]

    def test_calls_and_results_are_whole(self, desk: Desk, capsys: Captured) -> None:
        """However long they are, and whatever lines they have."""
        long = "\n".join("x" * 100 for _ in range(50))
        call = {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "y" * 100}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": long}]}
        desk.answers["read_archive"] = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        run(["archive", "read", "b0d9"])
        out = capsys.readouterr().out
        assert out.count("x" * 100) == 50
        assert "-> read_file " + json.dumps({"path": "y" * 100}) in out

    def test_an_entry_that_is_not_there(self, desk: Desk, capsys: Captured) -> None:
        """Exits with 3, and says where the number of entries is."""
        desk.answers["read_archive"] = []
        assert run(["archive", "read", "b0d9", "9-12"]) == 3
        assert capsys.readouterr() == (
            "",
            "orch: archive b0d9 has no entry 9: orch archive list shows how many it has\n",
        )

    @pytest.mark.parametrize("entries", ["0", "x", "7-3", "3-x", "1.5", ""])
    @pytest.mark.usefixtures("desk")
    def test_no_entries(self, capsys: Captured, entries: str) -> None:
        """What names none is a usage error with examples."""
        assert run(["archive", "read", "b0d9", entries]) == 2
        assert "3-7" in capsys.readouterr().err


class TestAsk:
    """Holders answer."""

    def test_the_same_as_orch_query(self, desk: Desk, capsys: Captured) -> None:
        """The same request, the same answer."""
        run(["query", "b0d9", "which port?", "--json"])
        run(["archive", "query", "b0d9", "which port?", "--json"])
        one, other = capsys.readouterr().out.splitlines()
        assert one == other
        (asked, params), (again, same) = desk.asked
        assert asked == again == "query"
        assert params | {"request_id": ""} == same | {"request_id": ""}

    def test_several_are_asked_the_same(self, desk: Desk, capsys: Captured) -> None:
        """Each answer under the id it was asked by; as JSON each reply is what scripts rely on."""
        assert run(["archive", "ask-all", "which port?", "b0d9", "--timeout", "5"]) == 0
        assert desk.asked == [("ask_all", {"refs": ["b0d9"], "prompt": "which port?", "timeout": 5.0})]
        assert capsys.readouterr().out == "b0d9f3:\n4711\n"
        run(["archive", "ask-all", "which port?", "b0d9", "--json"])
        [told] = json.loads(capsys.readouterr().out)
        assert (told["ref"], told["error"]) == ("b0d9f3", None)
        keys = ["id", "query_id", "text", "stop_reason", "usage", "tool_calls", "files_changed", "warning", "denied"]
        assert list(told["reply"]) == keys

    def test_one_that_cannot_answer(self, desk: Desk, capsys: Captured) -> None:
        """Is told in its place, and the command exits with 1."""
        desk.answers["ask_all"].append({"ref": "beef", "reply": None, "error": "no agent goes by 'beef'"})
        assert run(["archive", "ask-all", "which port?", "b0d9", "beef"]) == 1
        assert capsys.readouterr().out == "b0d9f3:\n4711\n\nbeef:\nerror: no agent goes by 'beef'\n"

    def test_one_whose_answer_was_cut_short(self, desk: Desk) -> None:
        """Is none, as where one is asked: 5 by a limit, 1 else, also beside whole ones."""
        whole = {"ref": "b0d9", "reply": REPLY, "error": None}
        for stop_reason, code in (("end_turn", 0), ("max_turns", 5), ("cancelled", 1)):
            desk.answers["ask_all"] = [whole, whole | {"reply": REPLY | {"stop_reason": stop_reason}}]
            assert run(["archive", "ask-all", "which port?", "b0d9", "x"]) == code

    def test_all_of_an_agent_once(self, desk: Desk) -> None:
        """Turns are asked rather than the eras they are in, and rather than their own phases."""

        def row(id: str, kind: str, *members: str) -> dict[str, Any]:
            return ARCHIVE | {"id": id, "kind": kind, "members": list(members)}

        desk.answers["list_archives"] = [
            row("p1", "phase"),
            row("t1", "turn", "p1"),
            row("t2", "turn"),
            row("e1", "era", "t1", "t2"),
            row("e2", "era"),
            row("p2", "phase"),
        ]
        run(["archive", "ask-all", "which port?", "--in", "reader"])
        assert desk.asked[0] == ("list_archives", {"ref": "reader"})
        assert desk.asked[1][1]["refs"] == ["t1", "t2", "e2", "p2"]

    @pytest.mark.parametrize("extra", [[], ["b0d9", "--in", "reader"]])
    def test_nobody_to_ask(self, desk: Desk, capsys: Captured, extra: list[str]) -> None:
        """Ids or an agent, not neither and not both."""
        assert run(["archive", "ask-all", "which port?", *extra]) == 2
        assert "--in REF" in capsys.readouterr().err
        assert desk.asked == []

    def test_an_agent_without_archives(self, desk: Desk, capsys: Captured) -> None:
        """There is nobody to ask: 3."""
        desk.answers["list_archives"] = []
        assert run(["archive", "ask-all", "which port?", "--in", "reader"]) == 3
        assert "agent reader has archived nothing" in capsys.readouterr().err


class TestExport:
    """Everything, for other tools."""

    def test_a_line_of_json_an_archive(self, desk: Desk, capsys: Captured) -> None:
        """What is known of it and all its messages."""
        assert run(["archive", "export", "reader"]) == 0
        assert desk.asked == [("list_archives", {"ref": "reader"}), ("read_archive", {"id": "b0d9f3"})]
        [line] = capsys.readouterr().out.splitlines()
        assert json.loads(line) == {"holder": ARCHIVE, "messages": desk.answers["read_archive"]}

    def test_into_a_file(self, desk: Desk, capsys: Captured, tmp_path: Path) -> None:
        """For its user alone; how much it was is said."""
        assert run(["archive", "export", "--output", "all.jsonl"]) == 0
        assert capsys.readouterr().out == "1 archive, 2 messages: all.jsonl\n"
        file = tmp_path / "project" / "all.jsonl"
        assert json.loads(file.read_text())["holder"]["id"] == "b0d9f3"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert run(["archive", "export", "--output", "all.jsonl", "--json"]) == 0
        told = {"output": "all.jsonl", "archives": 1, "messages": 2, "unread": {}}
        assert json.loads(capsys.readouterr().out) == told
        desk.answers["read_archive"] = CommandError("AgentNotFoundError", "gone", 3)
        before = file.read_bytes()
        assert run(["archive", "export", "--output", "all.jsonl"]) == 3
        assert file.read_bytes() == before
        assert os.listdir() == ["all.jsonl"]

    @pytest.mark.usefixtures("desk")
    def test_a_file_that_cannot_be_written(self, capsys: Captured) -> None:
        """Is named, with why."""
        assert run(["archive", "export", "--output", "no/such/folder"]) == 1
        assert capsys.readouterr().err == "orch: no/such/folder cannot be written: No such file or directory\n"

    def test_one_that_is_damaged_is_left_out(self, desk: Desk, capsys: Captured) -> None:
        """The others are there, the command exits with 1 and says which is not."""
        desk.answers["list_archives"] = [ARCHIVE | {"id": "bad"}, ARCHIVE]
        desk.answers["read_archive"] = [CommandError("DamagedError", "not what was archived"), []]
        desk.in_turn.add("read_archive")
        assert run(["archive", "export"]) == 1
        out, err = capsys.readouterr()
        assert [json.loads(line)["holder"]["id"] for line in out.splitlines()] == ["b0d9f3"]
        assert err == "orch: archive bad is left out: not what was archived\n"

    def test_as_a_page(self) -> None:
        """A section an archive, a heading an entry; calls and results in fences that nothing in them closes."""
        result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "```\nx\n```"}]}
        call = {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "x"}}
        said = [
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call]},
            {"role": "user", "content": [result, {"type": "image", "media_type": "image/png", "data": ""}]},
            {"role": "assistant", "content": [{"type": "opaque", "provider": "p", "raw": 1}]},
        ]
        page = markdown(ARCHIVE, said)
        assert page.startswith(
            "# look\n\n`b0d9f3`, turn of agent `abc`, archived 2026-01-01\n\n## Entry 1: user\n\nlook"
        )
        assert '```thinking\nhm\n```\n\nCall of `read_file`:\n\n```json\n{"path":"x"}\n```' in page
        assert "Result:\n\n````text\n```\nx\n```\n````\n\n(image)" in page

    @pytest.mark.usefixtures("desk")
    def test_markdown_to_standard_output(self, capsys: Captured) -> None:
        """With --format md."""
        assert run(["archive", "export", "--format", "md"]) == 0
        assert "## Entry 2: assistant\n\nport = 4711\n" in capsys.readouterr().out


class TestPrune:
    """Deleting for good."""

    def test_what_was_deleted(self, desk: Desk, capsys: Captured) -> None:
        """A line an archive, and how much it was."""
        assert run(["archive", "prune", "--older-than", "30d", "--in", "reader"]) == 0
        assert desk.asked == [("prune_archives", {"older": "30d", "ref": "reader", "dry_run": False})]
        _, line, last = flat(capsys.readouterr().out)
        assert line.startswith("b0d9f3 turn abc ")
        assert last == "deleted 1 archive, 12,345 bytes"
        run(["archive", "prune", "--older-than", "30d", "--json"])
        assert json.loads(capsys.readouterr().out) == desk.answers["prune_archives"]

    def test_what_would_be(self, desk: Desk, capsys: Captured) -> None:
        """The same, and it is said that nothing was."""
        assert run(["archive", "prune", "--older-than", "30d", "--dry-run"]) == 0
        assert desk.asked == [("prune_archives", {"older": "30d", "ref": None, "dry_run": True})]
        assert capsys.readouterr().out.endswith("\nwould delete 1 archive, 12,345 bytes\n")

    @pytest.mark.parametrize("extra", [[], ["--json"]])
    def test_who_is_at_work(self, desk: Desk, capsys: Captured, extra: list[str]) -> None:
        """Is told, and the command exits with 4."""
        desk.answers["prune_archives"] = {"archives": [], "bytes": 0, "busy": {"abc": "agent 'n' is at work"}}
        assert run(["archive", "prune", "--older-than", "30d", *extra]) == 4
        out, err = capsys.readouterr()
        assert out == (
            "deleted 0 archives, 0 bytes\n"
            if not extra
            else f"{json.dumps(desk.answers['prune_archives'], separators=(',', ':'))}\n"
        )
        assert err == "orch: agent 'n' is at work\n"

    def test_an_age_must_be_given(self, desk: Desk, capsys: Captured) -> None:
        """Nothing is deleted because somebody forgot to say what."""
        assert run(["archive", "prune"]) == 2
        assert "--older-than" in capsys.readouterr().err
        assert desk.asked == []


@pytest.mark.parametrize(
    "argv", [["search", "x"], ["ask-all", "x"], ["prune", "--older-than", "1d"]], ids=lambda argv: str(argv[0])
)
def test_one_agent_is_named_at_most(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """Of two the last one would be heeded alone, and nobody be told."""
    assert run(["archive", *argv, "--in", "one", "--in", "other"]) == 2
    assert "--in is given twice" in capsys.readouterr().err
    assert desk.asked == []


class TestGroup:
    """The second word."""

    @pytest.mark.parametrize("action", ACTIONS)
    def test_every_action_has_help_with_an_example(self, capsys: Captured, action: str) -> None:
        """As every command has."""
        assert run(["archive", action, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: orch archive {action}")
        assert "--json" in out
        assert f"example:\n  orch archive {action}" in out
        assert run(["archive", "--help"]) == 0
        assert f"  {action} " in capsys.readouterr().out

    @pytest.mark.parametrize(("argv", "said"), [([], "say what to do"), (["frob"], "there is no 'frob'")])
    def test_a_word_that_is_none(self, capsys: Captured, argv: list[str], said: str) -> None:
        """Or none at all: those that there are, exit code 2."""
        assert run(["archive", *argv]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert ", ".join(ACTIONS) in err

    @pytest.mark.usefixtures("desk")
    def test_json_may_come_first(self, capsys: Captured) -> None:
        """Before the word as well as behind it."""
        assert run(["archive", "--json", "list"]) == 0
        assert json.loads(capsys.readouterr().out) == [ARCHIVE]


HOLDER: Any = ROW | {"kind": "holder", "id": "b0d9f3", "name": "b0d9f3"}


class TestShow:
    """A holder among the agents."""

    def test_what_it_holds_and_what_it_was_asked(self) -> None:
        """What stays of it in the conversation, its first entries, how to read the rest; then its own questions."""
        held, asked = (
            [{"role": "user", "content": [{"type": "text", "text": said}]}] for said in ("look", "which port?")
        )
        shown = {"agent": HOLDER, "messages": asked, "archive": ARCHIVE, "held": held}
        page = terminal.agent_page(shown)
        assert page.startswith("1  (archive)  b0d9f3\n")
        assert "holds (one turn: 2 messages, 1 turn; it pays):\n  Read: x\n\nentry 1, user:\n  look\n" in page
        assert "1 more: orch archive read b0d9f3 2-\n" in page
        assert page.endswith("was asked:\n\nuser:\n  which port?")

    def test_in_the_list_it_is_an_archive(self) -> None:
        """Its id is told once."""
        assert flat(terminal.agent_table([HOLDER]))[1].startswith("1 b0d9f3 (archive) idle")
