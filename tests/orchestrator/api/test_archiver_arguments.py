"""Invalid arguments, settings, folders and messages of an Archiver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.api.archiver import Archiver
from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.core.errors import ConfigError


def test_invalid_arguments_are_named(tmp_path: Path) -> None:
    """The error names the invalid format, profile, number, range or tool."""
    with pytest.raises(ConfigError, match=r"'xml'.*anthropic, openai, responses, orch"):
        Archiver(tmp_path, "xml")
    with pytest.raises(ConfigError, match=r"'huge'.*economy"):
        Archiver(tmp_path, "openai", "huge")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config must be an ArchivalConfig; got 5"):
        Archiver(tmp_path, "openai", config=5)  # type: ignore[arg-type]
    for beside in (-1, "x", True):
        with pytest.raises(ConfigError, match="beside must be a number of tokens"):
            Archiver(tmp_path, "openai", beside=beside)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not an AsyncOrchestrator"):
        Archiver(tmp_path, "openai", orchestrator=AsyncOrchestrator(home=tmp_path, env={}))  # type: ignore[arg-type]
    with Archiver(tmp_path, "openai") as archiver:
        with pytest.raises(ConfigError, match="start at 1"):
            archiver.read_archive("a", 0)
        with pytest.raises(ConfigError, match="no archive tool 'rm'"):
            archiver.call("rm", {})


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        *(
            (name, (None,), "messages must be a list.*got None")
            for name in ("fold", "unfold", "request", "block", "live")
        ),
        ("fold", ("hi",), "messages must be a list.*got 'hi'"),
        ("observe", (None, 5), "messages must be a list"),
        ("observe", ([], "5"), "input_tokens must be the number that the provider reported; got '5'"),
        ("search", (None,), "query must be a string with search terms; got None"),
        ("search", ("x", "5"), "limit must be an integer.*got '5'"),
        ("search", ("x", 1.5), "limit must be an integer"),
        ("read_archive", (["a"],), r"id of an archive must be a non-empty string; got \['a'\]"),
        ("read_archive", ("a", "x"), "entries 'x' to None: first must be an integer"),
        ("read_archive", ("a", 1, "x"), "entries 1 to 'x'"),
        ("read_archive", ("a", None), "entries None to None"),
        ("query", ([], "x"), "id of an archive"),
        ("call", ([], {}), r"no archive tool \[\]"),
    ],
)
def test_wrong_types_raise_config_error(tmp_path: Path, method: str, given: Any, words: str) -> None:
    """A value of the wrong type raises ConfigError, not a TypeError from inside orch."""
    with Archiver(tmp_path, "openai") as archiver, pytest.raises(ConfigError, match=words):
        getattr(archiver, method)(*given)


@pytest.mark.parametrize("stop_reason", ["canceled", "Error", "", 5, ["error"]])
def test_unknown_stop_reason_is_refused(tmp_path: Path, stop_reason: Any) -> None:
    """The error names the known reasons, because a turn would be archived that its real reason keeps."""
    with Archiver(tmp_path, "openai") as archiver, pytest.raises(ConfigError, match=r"unknown stop_reason.*cancelled"):
        archiver.fold([{"role": "user", "content": "hi"}], stop_reason=stop_reason)


@pytest.mark.parametrize("input", [None, [], "x", 5])
def test_tool_call_without_arguments_gets_an_error_result(tmp_path: Path, input: Any) -> None:
    """The result of an archive tool tells the model which argument is missing."""
    with Archiver(tmp_path, "openai") as archiver:
        assert archiver.call("read_archive", input) == "Error: id must be text"
        assert archiver.call("search_archive", input) == "Error: query must be text"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, "openai"), "folder must be a path; got None"),
        ((5, "openai"), "folder must be a path; got 5"),
        (("", "openai"), "folder must be a path; got ''"),
        (("a\0b", "openai"), r"folder must be a path; got 'a\\x00b'"),
    ],
)
def test_invalid_folder_is_refused_before_opening(given: Any, words: str) -> None:
    """A folder that is not a path raises ConfigError with the value."""
    with pytest.raises(ConfigError, match=words):
        Archiver(*given)


@pytest.mark.parametrize("lines", ["1-" + "9" * 5000, "9" * 5000])
def test_huge_line_number_gets_an_error_result(tmp_path: Path, lines: str) -> None:
    """Python refuses to convert so many digits; the model gets a short error."""
    with Archiver(tmp_path, "openai") as archiver:
        result = archiver.call("read_archive", {"id": "a", "lines": lines})
    assert result.startswith("Error: lines must be a range of lines")
    assert len(result) < 200


def test_files_with_other_names_stay_unread(tmp_path: Path) -> None:
    """A copy of a file of archives does not prevent opening the folder, and its archives do not appear twice."""
    with Archiver(tmp_path, "openai", "seed") as archiver:
        archiver.fold([{"role": "user", "content": "q"}, {"role": "assistant", "content": "word " * 20_000}])
    content = (tmp_path / "archive-000001.jsonl").read_bytes()
    for name in ("archive-000001 (copy).jsonl", "archive-1x.jsonl", "archive-2.jsonl", "archive-1.jsonl"):
        (tmp_path / name).write_bytes(content)
    with Archiver(tmp_path, "openai", "seed") as archiver:
        assert len(archiver.archives()) == 1
        assert archiver.notes == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"profile": "huge"}, "'huge': use seed"),
        ({"high_tokens": -5}, r"high_tokens"),
        ({"answer_tokens": "many"}, r"answer_tokens"),
        ({"trigger": {"depth": 1}}, r"`depth`"),
        ({"summary": {"style": "poem"}}, r"summary\.style"),
        ({"high_tokens": 100, "low_tokens": 200}, r"low_tokens = 200 is greater than"),
    ],
)
def test_invalid_settings_are_refused_before_opening(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """The error names the invalid setting, and the folder is not created."""
    with pytest.raises(ConfigError, match=words):
        Archiver(tmp_path / "a", "openai", config=ArchivalConfig(**given))
    assert not (tmp_path / "a").exists()
