"""`orch session` and `orch forget`: their requests to the daemon, their output and their errors."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from orch.cli import run
from orch.client.failure import CommandError
from orch.render.sessions import tree_lines
from orch_protocol.core.messages import Reply, assistant, user
from orch_worker.session.transcript import Transcript
from orchestrator.daemon_double import ROW, Desk, opened

MADE = {"id": "abc", "seq": 1, "name": "n", "task": "Look", "backend": {"provider": "x"}, "folder": "f", "cwd": "/"}
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


class TestImport:
    """`orch session import`: agents from files."""

    def test_import_prints_the_agent_id(self, desk: Desk, capsys: Captured) -> None:
        """The id is on stdout; format, repairs and notes are on stderr."""
        desk.answers["import"] |= {"repairs": ["line 7 is torn"], "notes": ["1 row left out"], "branches": 2}
        assert run(["session", "import", "talk.jsonl", "--model", "extractive:", "--name", "talk"]) == 0
        out, err = capsys.readouterr()
        assert out == "abc\n"
        assert err.splitlines() == [
            "orch: talk.jsonl: 14 messages, pi session, 2 other ends of it",
            "orch: talk.jsonl: line 7 is torn",
            "orch: talk.jsonl: 1 row left out",
        ]
        ((method, params),) = desk.asked
        assert method == "import"
        assert (params["path"], params["agent"]["name"], params["agent"]["model"]) == (
            str(Path("talk.jsonl").absolute()),
            "talk",
            "extractive:",
        )
        assert (params["agent"]["cwd"], params["here"], params["repair"], params["which"]) == (
            None,
            str(Path.cwd()),
            False,
            None,
        )

    def test_import_json_is_an_object_or_a_list(self, desk: Desk, capsys: Captured) -> None:
        """One file is an object and several files are a list. stderr is empty."""
        assert run(["session", "import", "a", "--json", "--repair", "--which", "2", "--cwd", "/"]) == 0
        out, err = capsys.readouterr()
        assert (json.loads(out)["id"], err) == ("abc", "")
        params = desk.asked[0][1]
        assert (params["repair"], params["which"], params["agent"]["cwd"]) == (True, 2, "/")
        assert run(["session", "import", "a", "b", "--json"]) == 0
        assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["abc", "abc"]

    def test_damaged_second_file_still_reports_the_first(self, desk: Desk, capsys: Captured) -> None:
        """stdout has the id of the first file's agent, and stderr has the error of the second file."""
        desk.answers["import"] = [desk.answers["import"], CommandError("DamagedError", "line 7")]
        desk.in_turn.add("import")
        assert run(["session", "import", "a", "b", "--json"]) == 1
        out, err = capsys.readouterr()
        assert [each["id"] for each in json.loads(out)] == ["abc"]
        assert json.loads(err)["error"] == {"type": "DamagedError", "message": "line 7"}

    def test_name_is_refused_for_several_files(self, desk: Desk, capsys: Captured) -> None:
        """No request is sent, because two agents cannot have the same name."""
        assert run(["session", "import", "a", "b", "--name", "x"]) == 2
        assert "one file only" in capsys.readouterr().err
        assert desk.asked == []


class TestCompact:
    """`orch session compact`."""

    def test_compact_prints_what_was_removed(self, desk: Desk, capsys: Captured) -> None:
        """People get one line with the sizes; --json has the summary, too."""
        assert run(["session", "compact", "reader", "--instructions", "Keep the figures."]) == 0
        out = "34,567 tokens are now 2,345: a model's summary replaces 12 messages (e6)\n"
        assert capsys.readouterr().out == out
        assert desk.asked == [("compact", {"ref": "reader", "instructions": "Keep the figures."})]
        assert run(["session", "compact", "reader", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["summary"] == "All is well."

    def test_impossible_compaction_fails_with_the_reason(self, desk: Desk, capsys: Captured) -> None:
        desk.answers["compact"] = CommandError("ConfigError", "there is nothing to compact", 2)
        assert run(["session", "compact", "reader"]) == 2
        assert "nothing to compact" in capsys.readouterr().err


class TestNotes:
    """Messages and data that programs add to a session."""

    def test_note_is_added_for_the_model(self, desk: Desk, capsys: Captured) -> None:
        """With --hidden the note is not displayed in the chat."""
        assert run(["session", "add-message", "reader", "Valve 7 is new."]) == 0
        assert capsys.readouterr().out == "e9\n"
        assert run(["session", "add-message", "reader", "x", "--kind", "state", "--hidden"]) == 0
        (_, first), (_, second) = desk.asked
        change = {"type": "add_message", "custom_type": "note", "text": "Valve 7 is new."}
        assert first == {"ref": "reader", "change": change}
        assert second["change"] == change | {"custom_type": "state", "text": "x", "display": False}

    def test_json_data_is_stored_and_read_by_kind(self, desk: Desk, capsys: Captured) -> None:
        assert run(["session", "meta", "set", "reader", "progress", '{"page": 7}']) == 0
        assert desk.asked[-1][1]["change"] == {"type": "set_metadata", "custom_type": "progress", "data": {"page": 7}}
        assert run(["session", "meta", "get", "reader", "progress"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [
            "ENTRY  CUSTOM_TYPE  DATA",
            'e7     progress     {"page":7}',
        ]
        assert desk.asked[-1] == ("list_session_metadata", {"ref": "reader", "custom_type": "progress"})

    @pytest.mark.parametrize("data", ["page 7", "NaN", "[1e999]", '{"a": -Infinity}'])
    def test_invalid_json_is_refused(self, desk: Desk, capsys: Captured, data: str) -> None:
        """Plain text, NaN and infinite numbers are refused."""
        assert run(["session", "meta", "set", "reader", "progress", data]) == 2
        assert "data is not JSON" in capsys.readouterr().err
        assert desk.asked == []

    def test_lone_surrogates_are_replaced(self, desk: Desk) -> None:
        """A lone surrogate cannot be encoded, so it becomes a replacement character."""
        assert run(["session", "meta", "set", "reader", "progress", '{"page": "\\ud800 é"}']) == 0
        assert desk.asked[-1][1]["change"]["data"] == {"page": "\N{REPLACEMENT CHARACTER} é"}


@pytest.mark.parametrize("name", ["talk.json", "recording"])
def test_fsck_finds_a_file_by_its_path(desk: Desk, tmp_path: Path, capsys: Captured, name: str) -> None:
    """`session fsck` checks a file if no agent has that name. The file may be from any program."""
    desk.answers["check_session"] = CommandError("AgentNotFoundError", f"no agent has the name or id {name!r}", 3)
    assert run(["session", "fsck", name]) != 0
    capsys.readouterr()
    Path(name).write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]')
    assert run(["session", "fsck", name]) == 0
    assert run(["session", "fsck", name, "--repair", "--output", "copy"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'project' / name}: no damage found\n" * 2


class TestExport:
    """`orch session export` and `orch session audit`."""

    @pytest.fixture(autouse=True)
    def _talk(self, desk: Desk, tmp_path: Path) -> None:
        transcript = Transcript.open(tmp_path / "talk", agent="abc", cwd="/")
        transcript.seed([user("Which port?"), assistant("4711")])
        transcript.close()
        desk.answers["state"] = desk.answers["state"] | {"folder": str(tmp_path / "talk")}

    def test_export_defaults_to_pi_on_standard_output(self, desk: Desk, capsys: Captured) -> None:
        """--format selects another format."""
        assert run(["session", "export", "reader"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["type"] for line in lines] == ["session", "message", "message"]
        assert desk.asked == [("session", {"ref": "reader", "limit": 0}), ("state", {"ref": "abc"})]
        assert run(["session", "export", "reader", "--format", "openai"]) == 0
        assert json.loads(capsys.readouterr().out)[1] == {"role": "assistant", "content": "4711"}

    def test_export_file_is_complete_private_and_named(self, tmp_path: Path, capsys: Captured) -> None:
        """Only the user can read the file, and its path is printed."""
        file = tmp_path / "talk.html"
        assert run(["session", "export", "reader", "--format", "html", "--output", str(file)]) == 0
        assert capsys.readouterr().out == f"{file}\n"
        assert file.read_text().endswith("</html>\n")
        assert file.stat().st_mode & 0o777 == 0o600
        assert run(["session", "export", "reader", "--output", str(file), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "id": "abc",
            "output": str(file),
            "notes": [],
        }

    def test_any_file_name_can_be_audited(self, desk: Desk, tmp_path: Path, capsys: Captured) -> None:
        """A name that no agent has is a path. An unknown name exits with 3, and with a suffix it exits with 1."""
        Path("recording").write_bytes((tmp_path / "talk" / "session.jsonl").read_bytes())
        desk.answers["state"] = CommandError("AgentNotFoundError", "no agent has the name or id 'recording'", 3)
        assert run(["session", "audit", "recording"]) == 0
        assert "4711" in capsys.readouterr().out
        assert run(["session", "audit", "another"]) == 3
        capsys.readouterr()
        assert run(["session", "audit", "another.jsonl"]) == 1
        assert "cannot read another.jsonl" in capsys.readouterr().err

    def test_agent_named_like_a_path_is_audited(self, desk: Desk, tmp_path: Path, capsys: Captured) -> None:
        """If no such file exists, the name means the agent."""
        desk.answers["state"] = {"folder": str(tmp_path / "talk")}
        assert run(["session", "audit", "v1.json"]) == 0
        assert "4711" in capsys.readouterr().out

    def test_omitted_content_is_reported_on_standard_error(self, tmp_path: Path, capsys: Captured) -> None:
        """An incomplete last line is left out of the export and reported on stderr."""
        path = tmp_path / "talk" / "session.jsonl"
        path.write_text(path.read_text() + '{"type":"mess')
        assert run(["session", "export", "reader", "--format", "md"]) == 0
        out, err = capsys.readouterr()
        assert "4711" in out
        assert "never finished: left out" in err

    def test_unwritable_export_file_is_named(self, capsys: Captured) -> None:
        """The error has the path as the user wrote it."""
        assert run(["session", "export", "reader", "--output", "no/such/file"]) == 1
        assert "cannot write no/such/file" in capsys.readouterr().err


class TestTree:
    """`orch session list`, `show`, `tree` and changes of a session's branches."""

    def test_session_list_has_the_latest_first(self, desk: Desk, capsys: Captured) -> None:
        """Holders of archives are not listed."""
        late = ROW | {"id": "late", "last_activity": "2026-02-01"}
        desk.answers["list"] = [ROW, late, ROW | {"id": "held", "kind": "holder"}]
        assert run(["session", "list", "--all", "--json"]) == 0
        assert [row["id"] for row in json.loads(capsys.readouterr().out)] == ["late", "abc"]
        assert desk.asked == [("list", {"all": True, "runs": False})]
        assert run(["session", "list"]) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert (head.split()[:3], [row.split()[1] for row in rows]) == (["SEQ", "ID", "NAME"], ["late", "abc"])

    def test_session_list_names_the_run_of_a_program(self, desk: Desk, capsys: Captured) -> None:
        """An agent of a program's run has no number, because commands of this home do not accept its number."""
        desk.answers["list"] = [ROW, ROW | {"id": "theirs", "run": "talks", "last_activity": "2026-02-01"}]
        assert run(["session", "list"]) == run(["session", "list", "--runs", "--json"]) == 0
        assert desk.asked == [("list", {"all": False, "runs": True})] * 2
        head, of_run, own, _ = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["SEQ", "ID", "RUN", "NAME"]
        assert of_run.split()[:3] == ["-", "theirs", "talks"]
        assert own.split()[1] == "abc"

    def test_empty_session_list_gives_a_hint(self, desk: Desk, capsys: Captured) -> None:
        """stdout is empty, and stderr names the command that spawns an agent."""
        desk.answers["list"] = []
        assert run(["session", "list"]) == 0
        out, err = capsys.readouterr()
        assert (out, "orch spawn TASK" in err) == ("", True)

    def test_session_json_has_id_entries_leaf_and_branches(self, desk: Desk, capsys: Captured) -> None:
        assert run(["session", "show", "latest", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["id"], shown["leaf"], len(shown["entries"]), len(shown["branches"])) == ("abc", "e5", 5, 2)
        assert desk.asked == [("session", {"ref": "latest", "limit": None})]

    def test_session_page_shows_folder_branches_and_last_entries(self, desk: Desk, capsys: Captured) -> None:
        """The page has the id, title, leaf, labels, branches and last entries of the session."""
        assert run(["session", "show", "n"]) == 0
        page = capsys.readouterr().out
        parts = "session   abc (n)", "title     pumps", "leaf      e5", "labels    start e1", "* e5 assistant: Thus."
        assert [part for part in parts if part not in page] == []
        assert desk.asked == [("session", {"ref": "n", "limit": 20})]

    @pytest.mark.usefixtures("desk")
    def test_tree_indents_branches_and_marks_the_current_path(self, capsys: Captured) -> None:
        """With --all, entries that are not messages are included."""
        assert run(["session", "tree", "n"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "* e1 user: How?  [start]",
            "    e2 assistant: So.",
            "* e5 assistant: Thus.  <- here",
        ]
        assert run(["session", "tree", "n", "--all"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "* e1 user: How?  [start]",
            "    e2 assistant: So.",
            "    e3 turn_end: So.",
            "* e4 checkout:",
            "* e5 assistant: Thus.  <- here",
        ]

    def test_deep_tree_does_not_recurse(self) -> None:
        """A chain of 50,000 entries is formatted without a recursion error."""
        rows = [
            {"id": str(at), "parent_id": str(at - 1) if at else None, "type": "message", "role": "user", "head": ""}
            | {"on_path": True, "label": None}
            for at in range(50_000)
        ]
        assert len(tree_lines(rows)) == 50_000

    def test_checkout_is_silent(self, desk: Desk, capsys: Captured) -> None:
        """`checkout` prints nothing; with --json, the change."""
        assert run(["session", "checkout", "n", "e2", "--summary", "in vain"]) == 0
        assert capsys.readouterr().out == ""
        change = {"type": "move", "to": "e2", "summary": "in vain"}
        assert desk.asked == [("change_session", {"ref": "n", "change": change})]
        assert run(["session", "checkout", "n", "root", "--json"]) == 0
        changed = {"id": "abc", "entry": "e9", "text": "How?", "summary": None, "by_model": False}
        changed |= {"model": None, "thinking": None}
        assert json.loads(capsys.readouterr().out) == changed
        assert run(["session", "checkout", "n", "e2", "--summarize"]) == 0
        assert desk.asked[-1][1]["change"]["summarize"] is True

    def test_branch_prints_the_prompt(self, desk: Desk, capsys: Captured) -> None:
        """`branch` prints the prompt of the entry, so that the user can ask it again in other words."""
        assert run(["session", "branch", "n", "e1"]) == 0
        assert capsys.readouterr().out == "How?\n"
        assert desk.asked[0][1]["ask_anew"] is True

    def test_label_and_title_are_removed_by_an_empty_text(self, desk: Desk) -> None:
        """Without a text, `label` and `title` remove the label and the title."""
        for argv, change in (
            (["label", "n", "e1", "start"], {"type": "label", "target": "e1", "label": "start"}),
            (["label", "n", "e1"], {"type": "label", "target": "e1"}),
            (["title", "n", "pumps"], {"type": "name", "name": "pumps"}),
            (["title", "n"], {"type": "name"}),
        ):
            assert run(["session", *argv]) == 0
            assert desk.asked[-1] == ("change_session", {"ref": "n", "change": change})

    def test_model_and_thinking_print_the_effective_values(self, desk: Desk, capsys: Captured) -> None:
        """The printed thinking level is the level of the result, which may differ from the requested level."""
        desk.answers["change_session"] |= {"model": "a:b", "thinking": "high"}
        for what, text, change, printed in (
            ("model", "a:b", {"type": "model", "model": "a:b"}, "a:b\n"),
            ("thinking", "medium", {"type": "thinking", "level": "medium"}, "high\n"),
        ):
            assert run(["session", what, "n", text]) == 0
            assert capsys.readouterr().out == printed
            assert desk.asked[-1] == ("change_session", {"ref": "n", "change": change})

    def test_fork_prints_the_new_agents_id(self, desk: Desk, capsys: Captured) -> None:
        assert run(["session", "fork", "n"]) == 0
        assert capsys.readouterr().out == "def\n"
        assert desk.asked == [("fork", {"ref": "n"})]
        assert run(["session", "fork", "n", "e2", "--name", "second", "--model", "a:b", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == "def"
        assert desk.asked[-1] == ("fork", {"ref": "n", "at": "e2", "name": "second", "model": "a:b"})


class TestToTest:
    """`orch session to-test`: a test made from a session."""

    def test_session_to_test_writes_a_pytest_module(self, desk: Desk, tmp_path: Path, capsys: Captured) -> None:
        """The file is valid Python with a test that is named after the agent."""
        transcript = Transcript.open(tmp_path / "talk", agent="abc", cwd="/")
        transcript.message(user("Which port?"), "t1")
        transcript.message(assistant("4711"), "t1")
        transcript.turn_end("t1", Reply("abc", "t1", "4711"))
        transcript.close()
        desk.answers["state"] = desk.answers["state"] | {"folder": str(tmp_path / "talk")}
        desk.answers["spec"] = MADE
        assert run(["session", "to-test", "latest", "--output", str(tmp_path / "test_it.py")]) == 0
        assert capsys.readouterr().out == f"{tmp_path}/test_it.py\n"
        source = (tmp_path / "test_it.py").read_text()
        assert "def test_n(tmp_path: Path) -> None:" in source
        compile(source, "test_it.py", "exec")

    def test_session_that_cannot_be_replayed_writes_no_test(self, desk: Desk, tmp_path: Path, capsys: Captured) -> None:
        """A session without a finished turn exits with 2, and no file is written."""
        transcript = Transcript.open(tmp_path / "talk", agent="abc", cwd="/")
        transcript.seed([user("Which port?")])
        transcript.close()
        desk.answers["state"] = desk.answers["state"] | {"folder": str(tmp_path / "talk")}
        desk.answers["spec"] = MADE
        assert run(["session", "to-test", "reader", "--output", str(tmp_path / "test_it.py")]) == 2
        assert "no finished turn" in capsys.readouterr().err
        assert not (tmp_path / "test_it.py").exists()


FORGOTTEN = {
    "sessions": [
        {
            "id": "abc",
            "seq": 1,
            "name": "n",
            "title": "Look",
            "last_activity": "2026-01-01T00:00:00.000Z",
            "bytes": 12_345,
        }
    ],
    "archives": 2,
    "bytes": 12_345,
}


class TestForget:
    """`orch forget`."""

    @pytest.fixture(autouse=True)
    def deleted(self, desk: Desk) -> None:
        """Set the daemon's report of deleted sessions."""
        desk.answers["forget_session"] = FORGOTTEN

    def test_without_a_terminal_it_needs_yes(self, desk: Desk, capsys: Captured) -> None:
        """Without --yes no session is deleted, also with --json."""
        for argv in (["forget", "reader"], ["forget", "reader", "--json"]):
            assert run(argv) == 2
            assert "add --yes" in capsys.readouterr().err
        assert desk.asked == []

    def test_forget_prints_deleted_sessions_and_sizes(self, desk: Desk, capsys: Captured) -> None:
        """One row for each session is followed by totals; --json prints the daemon's report."""
        assert run(["forget", "reader", "--yes"]) == 0
        assert desk.asked == [("forget_session", {"ref": "reader"})]
        _, row, last = capsys.readouterr().out.splitlines()
        assert row.split()[:3] == ["1", "abc", "n"]
        assert last == "deleted 1 session, 2 archives, 12,345 bytes"
        assert run(["forget", "reader", "--yes", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == FORGOTTEN

    def test_dry_run_deletes_no_session(self, desk: Desk, capsys: Captured) -> None:
        """A dry run does not need --yes."""
        assert run(["forget", "reader", "--dry-run"]) == 0
        assert desk.asked == [("forget_session", {"ref": "reader", "dry_run": True})]
        assert capsys.readouterr().out.endswith("\nwould delete 1 session, 2 archives, 12,345 bytes\n")

    @pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 1), ("no\n", 1), ("", 1)])
    def test_forget_asks_at_a_terminal(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
    ) -> None:
        """The question follows the list of sessions to delete. Only `y` deletes; the end of input means no."""
        terminal = io.StringIO(answer)
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdin", terminal)
        assert run(["forget", "reader"]) == code
        planned = ("forget_session", {"ref": "reader", "dry_run": True})
        deleted = ("forget_session", {"ref": "reader"})
        assert desk.asked == ([planned, deleted] if code == 0 else [planned])
        out, err = capsys.readouterr()
        assert "to delete permanently: 1 session, 2 archives, 12,345 bytes\nContinue? [y/N] " in out
        assert ("nothing was deleted" in err) is (code == 1)

    def test_busy_session_exits_with_4(self, desk: Desk) -> None:
        desk.answers["forget_session"] = CommandError("AgentBusyError", "agent 'reader' (abc) is at work", 4)
        assert run(["forget", "reader", "--yes"]) == 4
