"""Names of files as one line of text, and back."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from orch_protocol.core.text import scrub
from orch_worker.system.file_names import actual_path, shown_name

SHOWN = {
    "plain.txt": "plain.txt",
    "Größe ☃ \N{NO-BREAK SPACE}.txt": "Größe ☃ \N{NO-BREAK SPACE}.txt",
    "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}": "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}",
    "new\nline\r\t": "new\\nline\\r\\t",
    "\x1b[31m\x7f": "\\x1b[31m\\x7f",
    "\x85\u2028\u202e": "\\u0085\\u2028\\u202e",
    "caf\udce9": "caf\\xe9",
    "a\\b": "a\\b",
    "a\\nb": "a\\\\nb",
    "\\\n": "\\\\\\n",
}


@pytest.mark.parametrize("name", SHOWN)
def test_shown_name_is_one_line_and_leads_to_the_file(tmp_path: Path, name: str) -> None:
    """This is true for a file, for a file below a folder of this name, and for a new file in such a folder."""
    assert shown_name(name) == SHOWN[name]
    assert SHOWN[name].encode().decode().splitlines() == [SHOWN[name]]
    (tmp_path / name).mkdir()
    (tmp_path / name / name).touch()
    for path in (name, f"{name}/{name}", f"{name}/new", f"./{name}/../{name}"):
        assert actual_path(str(tmp_path), shown_name(path)) == path
        assert actual_path(str(tmp_path), path) == path
    absolute = f"{tmp_path}/{name}"
    assert actual_path("/nowhere", shown_name(absolute)) == absolute


def test_different_names_are_shown_differently(tmp_path: Path) -> None:
    """A name with a backslash cannot be taken for a name with a newline, and each shown form leads to its file."""
    names = ["a\nb", "a\\nb", "a\\\\nb", "caf\udce9", "caf\\xe9", "café", "caf\\u00e9"]
    for name in names:
        (tmp_path / name).touch()
    assert len({shown_name(name) for name in names}) == len(names)
    assert [actual_path(str(tmp_path), shown_name(name)) for name in names] == names


@pytest.mark.parametrize("written", ["caf\\xe9", "caf\\udce9", "caf\\351", "caf\udce9"])
def test_other_notations_of_a_byte_lead_to_the_file(tmp_path: Path, written: str) -> None:
    """Error messages and git write the byte in other ways."""
    (tmp_path / "caf\udce9").touch()
    assert actual_path(str(tmp_path), written) == "caf\udce9"


def test_git_notation_of_accents_leads_to_the_file(tmp_path: Path) -> None:
    """Git writes each byte of a character."""
    (tmp_path / "café").touch()
    assert actual_path(str(tmp_path), "caf\\303\\251") == "café"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_name_in_another_normalization_leads_to_the_only_such_file(tmp_path: Path, form: str) -> None:
    """Models write composed accents, and some systems store decomposed ones."""
    stored = unicodedata.normalize(form, "Größe é")
    (tmp_path / stored).mkdir()
    for other in ("NFC", "NFD"):
        path = unicodedata.normalize(other, "Größe é/új")
        assert actual_path(str(tmp_path), path) == f"{stored}/{path.rpartition('/')[2]}"


@pytest.mark.parametrize("name", ["caf\udce9", "x\udce4\udcb8y", "\udcff"])
def test_replaced_bytes_lead_to_the_only_such_file(tmp_path: Path, name: str) -> None:
    """The output of commands, JSON and transcripts contain U+FFFD in place of the bytes."""
    (tmp_path / name).touch()
    for written in (scrub(name), os.fsencode(name).decode(errors="replace")):
        assert actual_path(str(tmp_path), written) == name
    (tmp_path / name.replace("\udce9", "\udce8").replace("\udcb8", "\udcb9").replace("\udcff", "\udcfe")).touch()
    assert actual_path(str(tmp_path), scrub(name)) == scrub(name)


def test_exact_name_wins_over_another_normalization(tmp_path: Path) -> None:
    """Between two other names, none is chosen."""
    names = ["é ű", "e\N{COMBINING ACUTE ACCENT} ű", "é u\N{COMBINING DOUBLE ACUTE ACCENT}"]
    for name in names[:2]:
        (tmp_path / name).touch()
    assert [actual_path(str(tmp_path), name) for name in names] == names


@pytest.mark.parametrize("path", ["", ".", "..", "é\0", "a\\x00", "\ud800", "é" * 5_000, "a\\ud800", "\\"])
def test_path_that_no_file_can_have_stays_as_it_is(tmp_path: Path, path: str) -> None:
    """The tool that opens it reports the error."""
    assert actual_path(str(tmp_path), path) == path


def test_names_are_compared_in_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    """The name stays as it is."""
    assert actual_path(os.path.join(tmp_path, "none"), "é/a\\nb") == "é/a\\nb"
