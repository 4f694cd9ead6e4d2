"""`orch import`: sessions of other programs become archives, and each is copied once."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.cli.sessions.import_past import bar
from orch.imports.catalog import ImportCatalog, ImportRecord
from orch_protocol.session.entries import SESSION_VERSION
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.log.record_format import seal_lines
from orchestrator.imports.claude_rows import add_rows, add_turn, write_session

Captured = pytest.CaptureFixture[str]
Call = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ORCH_HOME."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def past(tmp_path: Path) -> Path:
    """A folder for the files of another program."""
    (tmp_path / "past").mkdir()
    return tmp_path / "past"


@pytest.fixture
def call(home: Path, capsys: Captured) -> Call:  # noqa: ARG001 - sets ORCH_HOME
    """A function that runs a command with --json, and returns its data or its error."""

    def call_command(*words: object, code: int = 0) -> Any:
        assert run([*map(str, words), "--json"]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if out else json.loads(err)["error"]

    return call_command


def texts(call: Call, id: str) -> list[str]:
    """Return the texts of the messages of a session; a call or result has its name or its text."""
    messages = call("archive", "read", id)
    blocks = [block for message in messages for block in message["content"]]
    return [block.get("text") or block.get("name") or block["content"][0]["text"] for block in blocks]


PARTS = {
    "environment": "<environment_context>\n  <cwd>/srv</cwd>\n</environment_context>",
    "rules": "# AGENTS.md instructions for /srv\n\n<INSTRUCTIONS>\nWrite tests first.\n</INSTRUCTIONS>",
    "user rules": "<user_instructions>\nBe brief.\n</user_instructions>",
    "rights": "<permissions instructions>\nAsk first.\n</permissions instructions>",
    "caveat": "<local-command-caveat>Caveat: These messages are from local commands.</local-command-caveat>",
    "clear": "<command-name>/clear</command-name>\n<command-message>clear</command-message>\n<command-args/>",
    "output": "<local-command-stdout></local-command-stdout>",
    "reminder": "<system-reminder>\n# claudeMd\nUse Celsius.\n</system-reminder>",
    "selection": "<ide_opened_file>The user opened the file pump.py.</ide_opened_file>",
    "skill": '<skill name="review" location="/srv/review/SKILL.md">\nRead all files.\n</skill>',
    "file": '<file name="/srv/pump.py">\nlimit = 80\n</file>',
}
"""Texts that programs put before the words of the user."""


class TestTitles:
    """The title is the first text that the user wrote."""

    @pytest.mark.parametrize(
        ("names", "shape", "joined"),
        [
            (("caveat", "clear", "output"), "transcript rows", False),
            *(
                (names, shape, joined)
                for joined in (False, True)
                for names, shape in (
                    (("rules", "environment"), "rollout"),
                    (("rights", "user rules", "environment"), "rollout"),
                    (("reminder", "selection"), "transcript rows"),
                    (("skill",), "pi session"),
                    (("file",), "pi session"),
                )
            ),
        ],
    )
    def test_title_is_without_texts_of_the_program(
        self, call: Call, past: Path, names: tuple[str, ...], shape: str, joined: bool
    ) -> None:
        """The texts are messages of their own, or the first parts of the message of the user."""
        texts = [*(PARTS[name] for name in names), "Why does the pump stop?\nIt is warm."]
        write_prompts(past / "one.jsonl", shape, [texts] if joined else [[text] for text in texts])
        call("import", past)
        (row,) = call("import", "--list")
        assert (row["title"], row["shape"]) == ("Why does the pump stop?", shape)

    def test_request_follows_the_context_of_an_editor(self, call: Call, past: Path) -> None:
        """The editor puts the open files and a heading before the request."""
        text = "# Context from my IDE setup:\n\n## Active file: a.py\n\n## My request for Codex:\nFix the pump\n"
        write_prompts(past / "one.jsonl", "rollout", [[text]])
        call("import", past)
        assert [row["title"] for row in call("import", "--list")] == ["Fix the pump"]

    def test_command_is_the_title_of_a_session_without_requests(self, call: Call, past: Path) -> None:
        """A command with arguments is a request, and a command without arguments is the title if no request follows."""
        write_session(past / "one.jsonl", PARTS["caveat"], PARTS["clear"])
        review = "<command-name>/review</command-name>\n<command-args>all files</command-args>"
        write_session(past / "two.jsonl", PARTS["clear"], review, "now the tests")
        call("import", past)
        assert sorted(row["title"] for row in call("import", "--list")) == ["/clear", "/review all files"]

    def test_answer_is_the_title_if_the_user_wrote_nothing(self, call: Call, past: Path) -> None:
        """A text of the program is never the title."""
        write_session(past / "one.jsonl", PARTS["reminder"])
        call("import", past)
        (row,) = call("import", "--list")
        assert row["title"].startswith("answer to")


def write_prompts(path: Path, shape: str, prompts: list[list[str]]) -> None:
    """Write a session with user messages, each with the parts of `prompts`, and an answer."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": text} for text in texts]} for texts in prompts
    ]
    messages.append({"role": "assistant", "id": "a", "content": [{"type": "text", "text": "It is too warm."}]})
    if shape == "transcript rows":
        path.write_text("")
        add_rows(path, *messages)
        return
    rows: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        is_answer = message["role"] == "assistant"
        if shape == "rollout":
            kind = "output_text" if is_answer else "input_text"
            content = [block | {"type": kind} for block in message["content"]]
            payload = {"type": "message", "role": message["role"], "content": content}
            rows.append({"timestamp": "2026-03-05T10:00:00Z", "type": "response_item", "payload": payload})
        else:
            rows.append({"type": "message", "id": f"m{number}", "parentId": f"m{number - 1}" if number else None})
            rows[-1] |= {"timestamp": "2026-03-05T10:00:00Z", "message": message}
    header = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-03-05T10:00:00Z", "cwd": "/srv"}
    lines = rows if shape == "rollout" else [header, *rows]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in lines))


class TestFirstImport:
    """A folder that was not imported before."""

    def test_folder_becomes_archives_that_are_listed(self, call: Call, past: Path, home: Path) -> None:
        """Each file is a session with its title, its times, its record and its disk space. No daemon is started."""
        write_session(past / "a" / "one.jsonl", "first", "second")
        write_session(past / "b" / "two.jsonl", "third")
        done = call("import", past)
        assert (done["files"], done["new"], done["turns"], done["messages"]) == (2, 2, 3, 12)
        rows = call("import", "--list")
        assert [(row["title"], row["turns"], row["messages"]) for row in rows] == [("first", 2, 8), ("third", 1, 4)]
        assert rows[0]["source"] == str(past / "a" / "one.jsonl")
        assert (rows[0]["started"], rows[0]["ended"]) == ("2026-03-05T00:00:00.000Z", "2026-03-05T00:07:00.000Z")
        assert "first" in rows[0]["record"]
        assert rows[0]["bytes"] + rows[1]["bytes"] == done["bytes"] > 0
        assert sorted(os.listdir(home)) == [".gitignore", "imports"]

    def test_messages_of_a_session_are_complete(self, call: Call, past: Path) -> None:
        """Reading a session shows all messages in the order of the file, also system messages and equal turns."""
        messages = [{"role": "system", "content": "rules"}]
        messages += [{"role": "user", "content": "again"}, {"role": "assistant", "content": "done"}] * 2
        (past / "plain.json").write_text(json.dumps(messages))
        call("import", past)
        (row,) = call("import", "--list")
        assert row["turns"] == 2
        assert texts(call, row["id"]) == ["rules", "again", "done", "again", "done"]
        assert [each["entry"] for each in call("archive", "read", row["id"][:6], "3-4")] == [3, 4]

    def test_session_without_times_has_the_time_of_its_file(self, call: Call, past: Path) -> None:
        """The date of a plain list of messages is the modification time."""
        file = past / "plain.json"
        file.write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]')
        os.utime(file, (1_700_000_000, 1_700_000_000))
        call("import", past)
        assert call("import", "--list")[0]["ended"].startswith("2023-11-14")

    def test_conversations_and_subagents_of_a_file_are_sessions(self, call: Call, past: Path) -> None:
        """Files of subagents are imported once, also if only the file of their session is named."""
        write_session(past / "main.jsonl", "main")
        write_session(past / "main" / "subagents" / "agent-1.jsonl", "helper")
        rows = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in ("x", "y")]
        (past / "dialogues.jsonl").write_text("\n".join(rows))
        assert call("import", past / "main.jsonl")["new"] == 2
        assert call("import", past)["new"] == 2
        assert sorted(row["title"] for row in call("import", "--list")) == ["helper", "main", "x", "y"]

    def test_other_and_hidden_files_are_no_sessions(self, call: Call, past: Path) -> None:
        """Settings are counted, files with credentials are not read, and neither is read again."""
        write_session(past / "one.jsonl", "first")
        (past / "settings.json").write_text('{"theme": "dark"}')
        (past / "history.jsonl").write_text('{"display": "hello"}\n')
        (past / ".credentials.json").write_text('{"messages": [{"role": "user", "content": "secret"}]}')
        done = call("import", past)
        assert (done["new"], len(done["other_files"]), done["unread"]) == (1, 2, {})
        history = past / "history.jsonl"
        status = history.stat()
        history.write_bytes(b"\xff\xfe".ljust(status.st_size, b"x"))
        os.utime(history, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert call("import", past)["other_files"] == done["other_files"]

    def test_files_that_are_no_sessions_are_listed_with_the_reason(
        self, call: Call, past: Path, capsys: Captured
    ) -> None:
        """A session in another encoding comes first. Links without a target and pipes are named too."""
        file = write_session(past / "one.jsonl", "first")
        (past / "a.json").write_text('{"theme": "dark"}')
        (past / "empty.json").write_text("")
        (past / "wide.jsonl").write_bytes(file.read_text().encode("utf-16"))
        (past / "gone.jsonl").symlink_to("nowhere")
        os.mkfifo(past / "pipe.json")
        write_session(past / os.fsdecode(b"\xff.json"), "").write_text("{}")
        other = call("import", past)["other_files"]
        reasons = {Path(name).name: reason for name, reason in other.items()}
        assert "is encoded as UTF-16: save it as UTF-8" in reasons["wide.jsonl"]
        assert "expected a session" in reasons["a.json"]
        assert "it is empty" in reasons["empty.json"]
        assert "is a link without a target" in reasons["gone.jsonl"]
        assert "is not a regular file" in reasons["pipe.json"]
        assert len(reasons) == 6
        assert call("import", past)["other_files"] == other
        assert run(["import", str(past)]) == 0
        out, err = capsys.readouterr()
        assert "6 other files" in out
        lines = err.splitlines()
        assert lines[0] == "orch: files that are not readable sessions: 6"
        assert sorted(line.strip() for line in lines[1:]) == sorted(other.values())
        assert "expected a session" in lines[-1]
        for number in range(30):
            (past / f"{number}.json").write_text("{}")
        run(["import", str(past)])
        assert capsys.readouterr().err.endswith("\n  and 16 more files (--json lists all)\n")

    def test_damaged_places_are_listed_by_each_import(self, call: Call, past: Path, capsys: Captured) -> None:
        """The rest of the session is imported. The places are stored with the session."""
        file = write_session(past / "one.jsonl", "first", "second")
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join([*lines[:2], b'{"type": \n', *lines[2:5], b"[]\n", *lines[5:], b'{"type": "us']))
        done = call("import", past)
        assert (done["new"], done["messages"], done["left_out"]) == (1, 8, 3)
        assert [place.partition(" is ")[0] for place in done["damaged"][str(file)]] == ["line 3", "line 7", "line 11"]
        assert call("import", "--list")[0]["damage"] == done["damaged"][str(file)]
        assert run(["import", str(past)]) == 0
        out, err = capsys.readouterr()
        assert "1 unchanged; 3 damaged places; " in out
        assert err.startswith(f"orch: {file} is damaged:\n  line 3 is not a JSON object")

    def test_unreadable_file_does_not_stop_the_import(self, call: Call, past: Path) -> None:
        """The other sessions are imported, the reason is reported, and the command fails."""
        write_session(past / "one.jsonl", "first")
        (past / "torn.json").write_text('[{"role": "user", "content": "hi"')
        (past / "zz.json").write_text("no json")
        done = call("import", past, code=1)
        assert done["new"] == 1
        assert list(done["unread"]) == [str(past / "torn.json")]

    def test_message_that_is_too_long_does_not_stop_the_import(
        self, call: Call, past: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other sessions are imported, and the reason is reported."""
        write_session(past / "a.jsonl", "word " * 1000)
        write_session(past / "b.jsonl", "second")
        monkeypatch.setattr("orch_worker.session.log.append_log.MAX_LINE_BYTES", 4000)
        done = call("import", past, code=1)
        assert done["new"] == 1
        assert "the maximum is 4000" in done["unread"][str(past / "a.jsonl")]

    def test_names_and_folders_of_any_kind(self, call: Call, past: Path, home: Path) -> None:
        """A name need not be text. Links are followed to their file, which is imported once."""
        file = write_session(past / "one.jsonl", "first")
        Path(os.fsdecode(bytes(past) + b"/\xff.jsonl")).write_bytes(file.read_bytes().replace(b"first", b"other"))
        (past / "link.jsonl").symlink_to(file)
        assert call("import", past)["new"] == 2
        assert call("import", past)["unchanged"] == 2
        assert call("import", past / "link.jsonl")["unchanged"] == 1
        assert call("import", home, code=2)["message"].endswith("pass a folder of sessions")
        assert "imported sessions themselves" in call("import", home / "imports", code=2)["message"]


class TestNextImport:
    """A folder that was imported before."""

    def test_unchanged_session_is_not_read(self, call: Call, past: Path) -> None:
        """Its size and modification time decide."""
        file = write_session(past / "one.jsonl", "first")
        call("import", past)
        file.chmod(0)
        done = call("import", past)
        assert (done["new"], done["unchanged"], done["turns"]) == (0, 1, 0)

    def test_grown_session_gets_its_new_turns(self, call: Call, past: Path) -> None:
        """Earlier turns are not written again, and the session keeps its id."""
        file = write_session(past / "one.jsonl", "first", "second")
        call("import", past)
        (before,) = call("import", "--list")
        add_turn(file, "third")
        done = call("import", past)
        assert (done["grown"], done["turns"], done["messages"]) == (1, 1, 4)
        (after,) = call("import", "--list")
        assert (after["id"], after["turns"]) == (before["id"], 3)
        assert len(texts(call, after["id"])) == 12
        assert "third" in after["record"]

    def test_session_that_grew_within_its_last_turn_replaces_the_old_one(self, call: Call, past: Path) -> None:
        """The turn that was not finished at the first import is complete, and nothing is there twice."""
        file = write_session(past / "one.jsonl", "first")
        add_rows(file, {"role": "user", "content": "open"})
        call("import", past)
        add_rows(file, {"role": "assistant", "id": "z", "content": [{"type": "text", "text": "closed"}]})
        assert call("import", past)["replaced"] == 1
        (row,) = call("import", "--list")
        assert texts(call, row["id"])[-2:] == ["open", "closed"]
        assert len(call("archive", "search", "output of first")) == 1

    def test_rewritten_session_replaces_the_old_one(self, call: Call, past: Path, home: Path) -> None:
        """What the file no longer contains is not found, and its disk space is freed."""
        file = write_session(past / "one.jsonl", "first", "second")
        call("import", past)
        write_session(file, "other", "words", "here")
        assert call("import", past)["replaced"] == 1
        (row,) = call("import", "--list")
        assert (row["title"], row["turns"]) == ("other", 3)
        assert not [hit for hit in call("archive", "search", "output of second") if hit["exact"]]
        assert len([each for each in (home / "imports" / row["id"]).iterdir() if each.is_dir()]) == 1

    @pytest.mark.parametrize("grown", [False, True])
    def test_copy_of_another_version_is_replaced(self, call: Call, past: Path, home: Path, grown: bool) -> None:
        """Until then, a search names the command that replaces it."""
        file = write_session(past / "one.jsonl", "first")
        call("import", past)
        (copied,) = home.glob("imports/*/1/archive-000001.jsonl")
        header, *lines = copied.read_bytes().splitlines(keepends=True)
        other = header.partition(b',"s":1')[0].replace(b'"version":%d' % SESSION_VERSION, b'"version":1') + b"}"
        copied.write_bytes(b"".join([seal_lines([other], 0, 0)[0], *lines]))
        (row,) = call("import", "--list")
        assert call("archive", "read", row["id"], code=1)["message"].endswith(f"with `orch import {file}`")
        if grown:
            add_turn(file, "second")
        assert call("import", past)["replaced"] == 1
        assert call("archive", "search", "output of first")[0]["exact"]
        assert call("import", past)["unchanged"] == 1

    def test_removed_source_keeps_its_session(self, call: Call, past: Path) -> None:
        """The session stays searchable, also when its file now contains something else."""
        gone, emptied = write_session(past / "gone.jsonl", "first"), write_session(past / "empty.jsonl", "second")
        write_session(past / "other.jsonl", "third")
        call("import", past)
        gone.unlink()
        emptied.write_text("")
        assert call("import", past)["unchanged"] == 1
        rows = {row["title"]: row["source_exists"] for row in call("import", "--list")}
        assert rows == {"first": False, "second": True, "third": True}
        assert call("archive", "search", "output of first")[0]["exact"]

    def test_forgotten_session_returns_only_if_its_file_is_named(self, call: Call, past: Path, home: Path) -> None:
        """A later import of the folder does not bring back what the user removed."""
        file = write_session(past / "one.jsonl", "first")
        write_session(past / "two.jsonl", "second")
        call("import", past)
        id = next(row["id"] for row in call("import", "--list") if row["title"] == "first")
        assert call("import", "--forget", id[:5])["id"] == id
        assert not (home / "imports" / id).exists()
        assert call("import", "--forget", id, code=3)["type"] == "AgentNotFoundError"
        done = call("import", past)
        assert (done["forgotten"], done["unchanged"]) == (1, 1)
        assert call("import", file)["new"] == 1


class TestFailures:
    """Errors and interruptions."""

    def test_folder_without_sessions_is_an_error(self, call: Call, past: Path) -> None:
        """The message says what was looked for."""
        assert "no files that end in .jsonl or .json" in call("import", past, code=2)["message"]
        (past / "settings.json").write_text("{}")
        message = call("import", past, code=2)["message"]
        assert "contains no session among 1 files" in message
        assert "settings.json is not a readable recording" in message
        assert "No such file" in call("import", past / "none", code=2)["message"]
        assert call("import", past / "settings.json", code=1)["unread"]

    def test_missing_path_is_a_usage_error_with_the_similar_name(self, call: Call, past: Path) -> None:
        """`orch replay` gives the same error."""
        write_session(past / "long.jsonl", "first")
        for command in ("import", "replay"):
            message = call(command, past / "long.json", code=2)["message"]
            assert message.endswith(f"long.json: No such file or directory; did you mean {past / 'long.jsonl'}?")
            assert "pass an existing file or folder" in call(command, past / "other", code=2)["message"]

    def test_interrupted_import_says_that_the_same_command_continues(
        self, call: Call, past: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The finished session stays, and the next import adds the other one."""
        write_session(past / "a.jsonl", "first")
        write_session(past / "b.jsonl", "second")
        put = ImportCatalog.put

        def interrupted(catalog: ImportCatalog, record: ImportRecord) -> None:
            put(catalog, record)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(ImportCatalog, "put", interrupted)
            error = call("import", past, code=130)
        assert error["type"] == "Interrupted"
        assert error["message"].endswith("the same command imports the others")
        done = call("import", past)
        assert (done["new"], done["unchanged"]) == (1, 1)

    def test_command_without_a_path_is_refused(self, call: Call, past: Path) -> None:
        """The command needs a path, --list or --forget, and only one of them."""
        assert "--list" in call("import", code=2)["message"]
        assert call("import", past, "--list", code=2)["type"] == "UsageError"

    def test_second_import_at_the_same_time_is_refused(self, call: Call, past: Path, home: Path) -> None:
        """The message names the process and what to do."""
        write_session(past / "one.jsonl", "first")
        with ImportCatalog(home).lock():
            error = call("import", past, code=1)
        assert error["type"] == "LockedError"
        assert f"another import is running (process {os.getpid()})" in error["message"]
        assert call("import", past)["new"] == 1

    def test_full_disk_keeps_what_was_imported(self, call: Call, past: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names the cause. The next import continues, and the unfinished session is imported whole."""
        for name in ("a", "b", "c"):
            write_session(past / f"{name}.jsonl", f"{name} first", f"{name} second")

        def fill_disk(descriptor: int, data: bytes | memoryview) -> int:
            if b"b second" in bytes(data):
                raise OSError(errno.ENOSPC, "no space left")
            return os.write(descriptor, data)

        with monkeypatch.context() as full:
            full.setattr(AppendLog, "_write", staticmethod(fill_disk))
            assert "disk full" in call("import", past, code=1)["message"]
        assert [row["title"] for row in call("import", "--list")] == ["a first"]
        done = call("import", past)
        assert (done["new"], done["unchanged"]) == (2, 1)
        assert [row["turns"] for row in call("import", "--list")] == [2, 2, 2]

    def test_interrupted_append_is_written_anew(self, call: Call, past: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Turns that were stored without their record are not stored twice."""
        file = write_session(past / "one.jsonl", "first")
        call("import", past)
        add_turn(file, "second")
        with monkeypatch.context() as killed:
            killed.setattr(ImportCatalog, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            call("import", past, code=130)
        assert call("import", past)["replaced"] == 1
        (row,) = call("import", "--list")
        assert len(texts(call, row["id"])) == 8
        assert len(call("archive", "search", "output of second")) == 1

    def test_damaged_record_keeps_the_other_sessions(
        self, call: Call, past: Path, home: Path, capsys: Captured
    ) -> None:
        """The list names the folder. The next import reads the source again."""
        write_session(past / "one.jsonl", "first")
        call("import", past)
        (row,) = call("import", "--list")
        record = home / "imports" / row["id"] / "session.json"
        record.write_bytes(record.read_bytes()[:40])
        assert run(["import", "--list"]) == 0
        assert f"{record.parent} is damaged" in capsys.readouterr().err
        assert call("import", past)["new"] == 1
        assert call("import", "--list")[0]["id"] == row["id"]


def test_damaged_copy_is_found_by_fsck_and_by_reading(call: Call, past: Path, home: Path) -> None:
    """The other sessions stay searchable. The copy is imported again after it was removed."""
    file = write_session(past / "one.jsonl", "first")
    write_session(past / "two.jsonl", "second")
    call("import", past)
    assert call("fsck") == []
    id = next(row["id"] for row in call("import", "--list") if row["title"] == "first")
    (archive,) = (home / "imports" / id).glob("*/archive-*.jsonl")
    archive.write_bytes(archive.read_bytes().replace(b"output of first", b"output of worst"))
    assert [found["path"] for found in call("fsck", code=1)] == [str(archive)]
    assert call("archive", "search", "output of second")[0]["exact"]
    assert call("archive", "read", id, code=1)["type"] == "DamagedError"
    call("import", "--forget", id)
    call("import", file)
    assert texts(call, id)[2] == "output of first"


@pytest.mark.usefixtures("home")
def test_summary_is_one_line_without_a_bar(past: Path, capsys: Captured) -> None:
    """Nothing is written on stderr if it is no terminal."""
    write_session(past / "one.jsonl", "first")
    assert run(["import", str(past)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("1 session in 1 file: 1 new; 1 turn with 4 messages imported; ")
    assert out.endswith("on disk\n")
    assert err == ""
    run(["import", "--list"])
    assert "1 session, " in capsys.readouterr().out.splitlines()[-1]


def test_bar_fits_on_a_line() -> None:
    """The bar shows the share of the bytes, and a long name is shortened."""
    line = bar(250_000, 1_000_000, f"/x/{'n' * 100}.jsonl")
    assert line.startswith("[######..................]  25 % of 1.0 MB, nnn")
    assert len(line) < 80
    assert "100 %" in bar(0, 0, "empty.json")
