"""`orch session`: what is asked of the daemon, what is printed, how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch.cli import run
from orchestrator.desk import Desk, opened

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

    def test_a_name_is_for_one(self, desk: Desk, capsys: Captured) -> None:
        """Two agents cannot have one name; nothing is asked."""
        assert run(["session", "import", "a", "b", "--name", "x"]) == 2
        assert "one file at a time" in capsys.readouterr().err
        assert desk.asked == []
