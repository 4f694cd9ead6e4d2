"""`orch session`: what is asked of the daemon, what is printed, how it fails."""

from __future__ import annotations

import json
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
    """Agents out of files."""

    def test_prints_the_id(self, desk: Desk, capsys: Captured) -> None:
        """The id is data; what else there is to know goes to people."""
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

    def test_as_json(self, desk: Desk, capsys: Captured) -> None:
        """One file is an object with the id, several are a list of them; nothing else is printed."""
        assert run(["session", "import", "a", "--json", "--repair", "--which", "2", "--cwd", "/"]) == 0
        out, err = capsys.readouterr()
        assert (json.loads(out)["id"], err) == ("abc", "")
        params = desk.asked[0][1]
        assert (params["repair"], params["which"], params["agent"]["cwd"]) == (True, 2, "/")
        assert run(["session", "import", "a", "b", "--json"]) == 0
        assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["abc", "abc"]

    def test_the_second_file_is_damaged(self, desk: Desk, capsys: Captured) -> None:
        """The agents that there are by then are told all the same."""
        desk.answers["import"] = [desk.answers["import"], CommandError("DamagedError", "line 7")]
        desk.in_turn.add("import")
        assert run(["session", "import", "a", "b", "--json"]) == 1
        out, err = capsys.readouterr()
        assert [each["id"] for each in json.loads(out)] == ["abc"]
        assert json.loads(err)["error"] == {"type": "DamagedError", "message": "line 7"}

    def test_a_name_is_for_one(self, desk: Desk, capsys: Captured) -> None:
        """Two agents cannot have one name; nothing is asked."""
        assert run(["session", "import", "a", "b", "--name", "x"]) == 2
        assert "one file at a time" in capsys.readouterr().err
        assert desk.asked == []


class TestCompact:
    """What was said first gives way."""

    def test_says_what_went(self, desk: Desk, capsys: Captured) -> None:
        """In a line for people, whole for programs."""
        assert run(["session", "compact", "reader", "--instructions", "Keep the figures."]) == 0
        out = "34,567 tokens are 2,345 now: a model's summary stands in place of 12 messages (e6)\n"
        assert capsys.readouterr().out == out
        assert desk.asked == [("compact", {"ref": "reader", "instructions": "Keep the figures."})]
        assert run(["session", "compact", "reader", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["summary"] == "All is well."

    def test_nothing_can_go(self, desk: Desk, capsys: Captured) -> None:
        """The command fails, and says why."""
        desk.answers["compact"] = CommandError("ConfigError", "there is nothing to compact", 2)
        assert run(["session", "compact", "reader"]) == 2
        assert "nothing to compact" in capsys.readouterr().err


class TestNotes:
    """What programs put into a session."""

    def test_the_model_is_told(self, desk: Desk, capsys: Captured) -> None:
        """A note for everybody, or one of a kind that people are not shown."""
        assert run(["session", "add-message", "reader", "Valve 7 is new."]) == 0
        assert capsys.readouterr().out == "e9\n"
        assert run(["session", "add-message", "reader", "x", "--kind", "state", "--hidden"]) == 0
        (_, first), (_, second) = desk.asked
        change = {"type": "add_message", "custom_type": "note", "text": "Valve 7 is new."}
        assert first == {"ref": "reader", "change": change}
        assert second["change"] == change | {"custom_type": "state", "text": "x", "display": False}

    def test_data_is_kept_and_found(self, desk: Desk, capsys: Captured) -> None:
        """As JSON, by its kind."""
        assert run(["session", "meta", "set", "reader", "progress", '{"page": 7}']) == 0
        assert desk.asked[-1][1]["change"] == {"type": "set_metadata", "custom_type": "progress", "data": {"page": 7}}
        assert run(["session", "meta", "get", "reader", "progress"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [
            "ENTRY  CUSTOM_TYPE  DATA",
            'e7     progress     {"page":7}',
        ]
        assert desk.asked[-1] == ("list_session_metadata", {"ref": "reader", "custom_type": "progress"})

    @pytest.mark.parametrize("data", ["page 7", "NaN", "[1e999]", '{"a": -Infinity}'])
    def test_what_is_no_json_is_not_kept(self, desk: Desk, capsys: Captured, data: str) -> None:
        """Words, and figures that JSON does not carry."""
        assert run(["session", "meta", "set", "reader", "progress", data]) == 2
        assert "data is not JSON" in capsys.readouterr().err
        assert desk.asked == []

    def test_half_a_character_is_replaced(self, desk: Desk) -> None:
        """JSON can name one, and no encoding carries it; no verb lets one through."""
        assert run(["session", "meta", "set", "reader", "progress", '{"page": "\\ud800 é"}']) == 0
        assert desk.asked[-1][1]["change"]["data"] == {"page": "\N{REPLACEMENT CHARACTER} é"}


@pytest.mark.parametrize("name", ["talk.json", "recording"])
def test_a_file_to_look_at_goes_by_its_name_alone(desk: Desk, tmp_path: Path, capsys: Captured, name: str) -> None:
    """Of whichever program, and called whatever; an agent of that name comes first."""
    desk.answers["check_session"] = CommandError("AgentNotFoundError", f"no agent goes by {name!r}", 3)
    assert run(["session", "fsck", name]) != 0
    capsys.readouterr()
    Path(name).write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]')
    assert run(["session", "fsck", name]) == 0
    assert run(["session", "fsck", name, "--repair", "--output", "mended"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'project' / name}: nothing is wrong\n" * 2


class TestExport:
    """Conversations in files."""

    @pytest.fixture(autouse=True)
    def _talk(self, desk: Desk, tmp_path: Path) -> None:
        transcript = Transcript.open(tmp_path / "talk", agent="abc", cwd="/")
        transcript.seed([user("Which port?"), assistant("4711")])
        transcript.close()
        desk.answers["state"] = desk.answers["state"] | {"folder": str(tmp_path / "talk")}

    def test_to_standard_output(self, desk: Desk, capsys: Captured) -> None:
        """For pi, unless another format is named."""
        assert run(["session", "export", "reader"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["type"] for line in lines] == ["session", "message", "message"]
        assert desk.asked == [("session", {"ref": "reader", "most": 0}), ("state", {"ref": "abc"})]
        assert run(["session", "export", "reader", "--format", "openai"]) == 0
        assert json.loads(capsys.readouterr().out)[1] == {"role": "assistant", "content": "4711"}

    def test_to_a_file(self, tmp_path: Path, capsys: Captured) -> None:
        """The file is whole, its user's alone, and named."""
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

    def test_whatever_the_file_is_called_its_chain_can_be_read(
        self, desk: Desk, tmp_path: Path, capsys: Captured
    ) -> None:
        """Where no agent is called that."""
        Path("recording").write_bytes((tmp_path / "talk" / "session.jsonl").read_bytes())
        desk.answers["state"] = CommandError("AgentNotFoundError", "no agent goes by 'recording'", 3)
        assert run(["session", "audit", "recording"]) == 0
        assert "4711" in capsys.readouterr().out
        assert run(["session", "audit", "another"]) == 3
        capsys.readouterr()
        assert run(["session", "audit", "another.jsonl"]) == 1
        assert "cannot read another.jsonl" in capsys.readouterr().err

    def test_an_agent_that_is_called_as_a_file_is_audited(self, desk: Desk, tmp_path: Path, capsys: Captured) -> None:
        """Where no file is."""
        desk.answers["state"] = {"folder": str(tmp_path / "talk")}
        assert run(["session", "audit", "v1.json"]) == 0
        assert "4711" in capsys.readouterr().out

    def test_what_is_left_out_is_told(self, tmp_path: Path, capsys: Captured) -> None:
        """On standard error: what is written stays data."""
        path = tmp_path / "talk" / "session.jsonl"
        path.write_text(path.read_text() + '{"type":"mess')
        assert run(["session", "export", "reader", "--format", "md"]) == 0
        out, err = capsys.readouterr()
        assert "4711" in out
        assert "never finished: left out" in err

    def test_a_file_that_cannot_be_written(self, capsys: Captured) -> None:
        """The file is named as it was given."""
        assert run(["session", "export", "reader", "--output", "no/such/file"]) == 1
        assert "no/such/file cannot be written" in capsys.readouterr().err


class TestTree:
    """Conversations as trees."""

    def test_list(self, desk: Desk, capsys: Captured) -> None:
        """The latest first; an archive is no session."""
        late = ROW | {"id": "late", "last_activity": "2026-02-01"}
        desk.answers["list"] = [ROW, late, ROW | {"id": "held", "kind": "holder"}]
        assert run(["session", "list", "--all", "--json"]) == 0
        assert [row["id"] for row in json.loads(capsys.readouterr().out)] == ["late", "abc"]
        assert desk.asked == [("list", {"all": True, "runs": False})]
        assert run(["session", "list"]) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert (head.split()[:3], [row.split()[1] for row in rows]) == (["SEQ", "ID", "NAME"], ["late", "abc"])

    def test_list_names_the_run_of_a_program(self, desk: Desk, capsys: Captured) -> None:
        """Its agents have no number that a command of this home takes."""
        desk.answers["list"] = [ROW, ROW | {"id": "theirs", "run": "talks", "last_activity": "2026-02-01"}]
        assert run(["session", "list"]) == run(["session", "list", "--runs", "--json"]) == 0
        assert desk.asked == [("list", {"all": False, "runs": True})] * 2
        head, theirs, ours, _ = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["SEQ", "ID", "RUN", "NAME"]
        assert theirs.split()[:3] == ["-", "theirs", "talks"]
        assert ours.split()[1] == "abc"

    def test_list_of_nothing(self, desk: Desk, capsys: Captured) -> None:
        """Stdout is empty, and a person is told what to do."""
        desk.answers["list"] = []
        assert run(["session", "list"]) == 0
        out, err = capsys.readouterr()
        assert (out, "orch spawn TASK" in err) == ("", True)

    def test_show_as_json(self, desk: Desk, capsys: Captured) -> None:
        """All there is: id, entries, leaf, branches."""
        assert run(["session", "show", "latest", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["id"], shown["leaf"], len(shown["entries"]), len(shown["branches"])) == ("abc", "e5", 5, 2)
        assert desk.asked == [("session", {"ref": "latest", "most": None})]

    def test_show(self, desk: Desk, capsys: Captured) -> None:
        """What it is, where it is, its branches, the end of it."""
        assert run(["session", "show", "n"]) == 0
        page = capsys.readouterr().out
        parts = "session   abc (n)", "title     pumps", "leaf      e5", "labels    start e1", "* e5 assistant: Thus."
        assert [part for part in parts if part not in page] == []
        assert desk.asked == [("session", {"ref": "n", "most": 20})]

    @pytest.mark.usefixtures("desk")
    def test_tree(self, capsys: Captured) -> None:
        """A branch stands further in; what the conversation has now is marked, and where it is."""
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

    def test_a_long_tree(self) -> None:
        """Nothing recurses."""
        rows = [
            {"id": str(at), "parent_id": str(at - 1) if at else None, "type": "message", "role": "user", "head": ""}
            | {"on_path": True, "label": None}
            for at in range(50_000)
        ]
        assert len(tree_lines(rows)) == 50_000

    def test_checkout(self, desk: Desk, capsys: Captured) -> None:
        """Says nothing when it is done; the summary may come from stdin."""
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

    def test_branch_prints_the_question(self, desk: Desk, capsys: Captured) -> None:
        """To be asked in other words."""
        assert run(["session", "branch", "n", "e1"]) == 0
        assert capsys.readouterr().out == "How?\n"
        assert desk.asked[0][1]["ask_anew"] is True

    def test_label_and_title(self, desk: Desk) -> None:
        """Without a text it is taken away."""
        for argv, change in (
            (["label", "n", "e1", "start"], {"type": "label", "target": "e1", "label": "start"}),
            (["label", "n", "e1"], {"type": "label", "target": "e1"}),
            (["title", "n", "pumps"], {"type": "name", "name": "pumps"}),
            (["title", "n"], {"type": "name"}),
        ):
            assert run(["session", *argv]) == 0
            assert desk.asked[-1] == ("change_session", {"ref": "n", "change": change})

    def test_model_and_thinking_print_what_holds_now(self, desk: Desk, capsys: Captured) -> None:
        """The model as it is called, the level that it really has."""
        desk.answers["change_session"] |= {"model": "a:b", "thinking": "high"}
        for what, said, change, printed in (
            ("model", "a:b", {"type": "model", "model": "a:b"}, "a:b\n"),
            ("thinking", "medium", {"type": "thinking", "level": "medium"}, "high\n"),
        ):
            assert run(["session", what, "n", said]) == 0
            assert capsys.readouterr().out == printed
            assert desk.asked[-1] == ("change_session", {"ref": "n", "change": change})

    def test_fork_prints_the_id(self, desk: Desk, capsys: Captured) -> None:
        """Of the other agent."""
        assert run(["session", "fork", "n"]) == 0
        assert capsys.readouterr().out == "def\n"
        assert desk.asked == [("fork", {"ref": "n"})]
        assert run(["session", "fork", "n", "e2", "--name", "second", "--model", "a:b", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == "def"
        assert desk.asked[-1] == ("fork", {"ref": "n", "at": "e2", "name": "second", "model": "a:b"})


class TestToTest:
    """Conversations as tests."""

    def test_a_test_module(self, desk: Desk, tmp_path: Path, capsys: Captured) -> None:
        """It is written whole, and is Python that pytest would find a test in."""
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

    def test_what_cannot_be_told_again(self, desk: Desk, tmp_path: Path, capsys: Captured) -> None:
        """The reason is told, and nothing is written."""
        transcript = Transcript.open(tmp_path / "talk", agent="abc", cwd="/")
        transcript.seed([user("Which port?")])
        transcript.close()
        desk.answers["state"] = desk.answers["state"] | {"folder": str(tmp_path / "talk")}
        desk.answers["spec"] = MADE
        assert run(["session", "to-test", "reader", "--output", str(tmp_path / "test_it.py")]) == 2
        assert "no finished turn" in capsys.readouterr().err
        assert not (tmp_path / "test_it.py").exists()
