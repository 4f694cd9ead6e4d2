"""What an Archiver is given and cannot take: arguments, settings, folders, messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.api.archiver import Archiver
from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.core.errors import ConfigError


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    """Unknown formats and profiles, ranges that cannot be and tools that are none are named."""
    with pytest.raises(ConfigError, match=r"'xml'.*anthropic, openai, responses, orch"):
        Archiver(tmp_path, "xml")
    with pytest.raises(ConfigError, match=r"'huge'.*economy"):
        Archiver(tmp_path, "openai", "huge")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config is an ArchivalConfig, not 5"):
        Archiver(tmp_path, "openai", config=5)  # type: ignore[arg-type]
    for beside in (-1, "x", True):
        with pytest.raises(ConfigError, match="beside is a number of tokens"):
            Archiver(tmp_path, "openai", beside=beside)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not an AsyncOrchestrator"):
        Archiver(tmp_path, "openai", orchestrator=AsyncOrchestrator(home=tmp_path, env={}))  # type: ignore[arg-type]
    with Archiver(tmp_path, "openai") as archiver:
        with pytest.raises(ConfigError, match="count from 1"):
            archiver.read_archive("a", 0)
        with pytest.raises(ConfigError, match="no archive tool 'rm'"):
            archiver.call("rm", {})


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        *((name, (None,), "messages are a list.*not None") for name in ("fold", "unfold", "request", "block", "live")),
        ("fold", ("hi",), "messages are a list.*not 'hi'"),
        ("observe", (None, 5), "messages are a list"),
        ("observe", ([], "5"), "input_tokens is what the provider reported, a number, not '5'"),
        ("search", (None,), "query must be a string with search terms; got None"),
        ("search", ("x", "5"), "limit is how many.*not '5'"),
        ("search", ("x", 1.5), "limit is how many"),
        ("read_archive", (["a"],), r"goes by its id, a text, not \['a'\]"),
        ("read_archive", ("a", "x"), "entries 'x' to None: they are numbers"),
        ("read_archive", ("a", 1, "x"), "entries 1 to 'x'"),
        ("read_archive", ("a", None), "entries None to None"),
        ("query", ([], "x"), "goes by its id"),
        ("call", ([], {}), r"no archive tool \[\]"),
    ],
)
def test_what_has_another_type_is_told(tmp_path: Path, method: str, given: Any, words: str) -> None:
    """Python's own complaint would name a line of ours."""
    with Archiver(tmp_path, "openai") as archiver, pytest.raises(ConfigError, match=words):
        getattr(archiver, method)(*given)


@pytest.mark.parametrize("input", [None, [], "x", 5])
def test_a_tool_call_without_arguments_is_answered(tmp_path: Path, input: Any) -> None:
    """A model may send anything, and is told what is missing."""
    with Archiver(tmp_path, "openai") as archiver:
        assert archiver.call("read_archive", input) == "Error: id must be text"
        assert archiver.call("search_archive", input) == "Error: query must be text"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, "openai"), "a folder is a path, not None"),
        ((5, "openai"), "a folder is a path, not 5"),
    ],
)
def test_a_folder_that_is_none_is_told(given: Any, words: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=words):
        Archiver(*given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"profile": "huge"}, "'huge': seed"),
        ({"high_tokens": -5}, r"high_tokens"),
        ({"answer_tokens": "many"}, r"answer_tokens"),
        ({"trigger": {"depth": 1}}, r"`depth`"),
        ({"summary": {"style": "poem"}}, r"summary\.style"),
        ({"high_tokens": 100, "low_tokens": 200}, r"low_tokens = 200 is greater than"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """What a setting cannot be is named with the setting, before anything is opened."""
    with pytest.raises(ConfigError, match=words):
        Archiver(tmp_path / "a", "openai", config=ArchivalConfig(**given))
    assert not (tmp_path / "a").exists()
