"""Files that a person wrote, as editors on Windows save them: with a byte order mark, CRLF or in UTF-16."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch.cli.agents import spawn
from orch.cli.agents.typed_query import type_in_file
from orch.cli.command import text
from orch.client.failure import CommandError
from orch.config import config
from orch.config.user_config import add_to_list
from orch.notebook import magic
from orch.replay.readers import read_recordings
from orch.resources import agent_types
from orch.resources.prompt_templates import Files
from orch.sessions.formats.conversation import ImportedSession, path_to_leaf
from orch.sessions.formats.detect import read_file
from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.core.text import UTF8_MARK
from orch_protocol.resources.memory import Note
from orch_protocol.session.entries import MessageEntry
from orch_worker.backends import models
from orch_worker.extensions.loader import read_manifest
from orch_worker.memory.memory_file import FileMemory
from orch_worker.skills.skill_file import name_in, read_skill_file

ROWS = '{"role": "user", "content": "hé"}\n{"role": "assistant", "content": "ho"}\n'
SKILL = "---\nname: tidy\ndescription: Größe\n---\nSweep.\nWipe.\n"
MANIFEST = 'name = "pack"\nversion = "1"\ndescription = "Größe"\n'
READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "configuration": (
        "config.toml",
        "[subagents]\ndepth_cap = 2\n",
        lambda file: config.load(None, {}, home=file.parent).config,
    ),
    "models": (
        "models.json",
        '{"models": {"openai": {"mine": {"context": 9000}}}}',
        lambda file: models.load(file.parent),
    ),
    "skill": ("tidy/SKILL.md", SKILL, lambda file: read_skill_file(file.parent)),
    "agent type": (
        "agents/reviewer.md",
        "---\nname: reviewer\ndescription: Größe\n---\nReview.\nCheck.\n",
        lambda file: [(each.name, each.description, each.prompt, each.why_off) for each in types_in(file)],
    ),
    "extension": ("pack/extension.toml", MANIFEST, lambda file: read_manifest(file.parent)),
    "template": ("hello.md", "Größe {{name}}\nBye\n", lambda file: [each.text for each in Files(file).templates()]),
    "schema": ("schema.json", '{"type": "integer"}', lambda file: type_in_file(str(file)).schema),
    "script": ("script.json", '["hé", "ho"]', lambda file: spawn._script(str(file))),
    "history": (
        "history.json",
        json.dumps([{"role": "user", "content": "hé"}]),
        lambda file: spawn.history_params(Namespace(history=str(file))),
    ),
    "notebook script": ("script.json", '["hé"]', lambda file: magic._script(file)._items),
    "imported session": ("rows.jsonl", ROWS, lambda file: [messages_of(each) for each in read_file(file)]),
    "recording": ("rows.jsonl", ROWS, lambda file: [each.calls for each in read_recordings(file)]),
}
LOSSY = {"template"}
"""Readers that decode UTF-16, because a wrong character does no harm."""


def types_in(file: Path) -> list[agent_types.AgentType]:
    return agent_types.find(file.parent.parent / "none", file.parent.parent)


def messages_of(session: ImportedSession) -> list[object]:
    return [entry.message for entry in path_to_leaf(session) if isinstance(entry, MessageEntry)]


def saved(folder: Path, reader: str, encode: Callable[[str], bytes]) -> Path:
    """Write the file of `reader` to `folder`, encoded by `encode`."""
    name, text, _ = READERS[reader]
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode(text))
    return file


@pytest.mark.parametrize("reader", READERS)
def test_mark_and_carriage_returns_change_nothing(tmp_path: Path, reader: str) -> None:
    """The result is that of the plain file."""
    read = READERS[reader][2]
    plain = read(saved(tmp_path, reader, str.encode))
    marked = read(saved(tmp_path, reader, lambda text: UTF8_MARK + text.replace("\n", "\r\n").encode()))
    assert marked == plain


@pytest.mark.parametrize("reader", [each for each in READERS if each not in LOSSY])
def test_utf_16_is_named_in_the_error(tmp_path: Path, reader: str) -> None:
    """The error says which file it is and what to do."""
    file = saved(tmp_path, reader, lambda text: text.encode("utf-16"))
    if reader == "agent type":
        assert types_in(file)[0].why_off == "it is encoded as UTF-16: save it as UTF-8"
        return
    with pytest.raises((OrchError, CommandError), match="it is encoded as UTF-16: save it as UTF-8") as caught:
        READERS[reader][2](file)
    assert file.name in str(caught.value)


def test_invalid_utf_8_in_a_setting_is_named_with_its_line(tmp_path: Path) -> None:
    """The error says what to do."""
    saved(tmp_path, "configuration", lambda text: UTF8_MARK + text.encode() + b"# \xe9\n")
    with pytest.raises(ConfigError, match=r"config.toml, line 3: not UTF-8 \(byte 0xe9\): save it as UTF-8"):
        config.load(None, {}, home=tmp_path)


def test_name_of_a_marked_skill_is_known(tmp_path: Path) -> None:
    """The install command and the catalog use the name."""
    assert name_in(saved(tmp_path, "skill", lambda text: UTF8_MARK + text.encode())) == "tidy"


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_edited_configuration_keeps_its_mark_and_line_ends(tmp_path: Path, ends: str) -> None:
    """A command that adds an item changes nothing else."""
    file = tmp_path / "config.toml"
    file.write_bytes(UTF8_MARK + f'[policy]{ends}denied_paths = ["a"]{ends}'.encode())
    assert add_to_list(tmp_path, "policy", "denied_paths", "b")
    assert file.read_bytes() == UTF8_MARK + f'[policy]{ends}denied_paths = ["b", "a"]{ends}'.encode()


def test_notes_of_a_memory_file_with_a_mark_are_all_read(tmp_path: Path) -> None:
    """The first note is one of them."""
    memory = FileMemory(tmp_path, 1_000)
    memory.add(Note("1", "one", ""))
    memory.path.write_bytes(UTF8_MARK + memory.path.read_bytes())
    assert [note.text for note in memory.notes()] == ["one"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_from_standard_input_has_no_mark(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """A shell on Windows pipes text with a mark. Invalid bytes are replaced."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("Größe?\r\n".encode(encoding))))
    assert text("-") == "Größe?\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    assert text("-") == "caf\N{REPLACEMENT CHARACTER}"
