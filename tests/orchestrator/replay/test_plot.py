"""The picture of a replay: its content, its colors, and errors when it cannot be drawn."""

from __future__ import annotations

import builtins
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orch import cli
from orch.cli.sessions.replay import bar
from orch.replay.bill import Bill
from orch.replay.plot import _LOOKS, check_picture_path, draw
from orch.replay.policy_names import DEFAULT, NAMES
from orch.replay.readers import read_recordings
from orch.replay.report import Outcome, Point, ReplayPricing, replay
from orch_protocol.core.errors import ConfigError, StoreError
from recordings import dump_lines, pi

SVG = "{http://www.w3.org/2000/svg}"


def outcome(name: str, calls: int = 3, size: int = 10_000) -> Outcome:
    """Return the outcome of a policy whose requests grow by `size`."""
    course = tuple(Point(size * call, 1e6 * call) for call in range(1, calls + 1))
    return Outcome(name, Bill(units=1e6 * calls), course=course)


def drawn(file: Path, *outcomes: Outcome, calls: tuple[int, ...] = (3,), title: str = "") -> ElementTree.Element:
    """Draw `outcomes` and return the picture."""
    draw(outcomes, calls, file, usd=3.0, title=title)
    return ElementTree.fromstring(file.read_text())


def texts(picture: ElementTree.Element) -> list[str]:
    """Return all texts in `picture`."""
    return ["".join(text.itertext()).strip() for text in picture.iter(f"{SVG}text")]


def test_course_has_a_point_for_each_call(tmp_path: Path) -> None:
    """The cost is added up over several recordings, and the last points agree with the sums."""
    paths = [dump_lines(tmp_path / f"{turns}.jsonl", pi(turns)) for turns in (4, 6)]
    found = [recording for path in paths for recording in read_recordings(path)]
    for name in ("none", "balanced"):
        came = replay(found, name, ReplayPricing(items=0), tmp_path / name)
        assert len(came.course) == sum(len(recording.calls) for recording in found) == 40
        assert all(before.units < after.units for before, after in pairwise(came.course))
        assert came.course[-1].units == pytest.approx(came.units)
        assert max(point.context for point in came.course) == came.bill.peak_tokens
        assert came.course[16].context < came.course[15].context


def test_plot_labels_axes_and_policies(tmp_path: Path) -> None:
    """Both panels have a label with a unit; each policy has its name and cost."""
    found = texts(drawn(tmp_path / "a.svg", outcome("none"), outcome("balanced", size=2_000), title="my $s_1$.jsonl"))
    assert {"request size (tokens, log scale)", "cost so far (US dollars)", "model calls"} <= set(found)
    assert {"none  $9.00", "balanced  $9.00", "my $s_1$.jsonl"} <= set(found)
    assert {"10,000", "20,000", "$0.00", "$8.00"} <= set(found)


def test_plotted_conversations_are_separated(tmp_path: Path) -> None:
    """Recordings are drawn one after the other, with a thin line between them."""
    one = drawn(tmp_path / "a.svg", outcome("none", 6), calls=(6,))
    three = drawn(tmp_path / "b.svg", outcome("none", 6), calls=(2, 2, 2))
    assert "model calls, 3 conversations one after the other" in texts(three)
    borders = [len(re.findall("#bbbbbb", ElementTree.tostring(each, "unicode"))) for each in (one, three)]
    assert borders == [0, 4]


@pytest.mark.parametrize("calls", [0, 1])
def test_plot_of_one_call_or_none(tmp_path: Path, calls: int) -> None:
    """A recording with one call or without calls can be drawn."""
    assert "model calls" in texts(drawn(tmp_path / "a.svg", outcome("none", calls), calls=(calls,)))


def test_same_replay_is_the_same_picture(tmp_path: Path) -> None:
    """The content of a picture does not depend on the time at which it is drawn."""
    for name in ("a", "b"):
        drawn(tmp_path / f"{name}.svg", outcome("none"), outcome("balanced"))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_png_is_drawn(tmp_path: Path) -> None:
    """A PNG file has 1500 by 1050 pixels."""
    draw([outcome("none")], [3], tmp_path / "a.PNG", usd=3.0, title="水泵")
    data = (tmp_path / "a.PNG").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (1500, 1050)


def test_every_policy_looks_its_own_way() -> None:
    """No two policies have the same color and dashes, and no two default policies have the same color."""
    assert set(_LOOKS) == set(NAMES)
    assert len({(look.color, look.dashes) for look in _LOOKS.values()}) == len(NAMES)
    assert len({_LOOKS[name].color for name in DEFAULT}) == len(DEFAULT)


def brightness(colour: str) -> float:
    """Return the relative luminance of `colour`, from 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_lines_stand_out_from_white() -> None:
    """The contrast of each color with white is at least 2."""
    assert {name: 1.05 / (brightness(look.color) + 0.05) > 2 for name, look in _LOOKS.items()} == dict.fromkeys(
        _LOOKS, True
    )


@pytest.mark.parametrize(
    ("name", "words"), [("a.pdf", "ends in .png or .svg"), ("a", "ends in"), ("no/where/a.svg", "does not exist")]
)
def test_invalid_plot_files_are_refused(name: str, words: str, tmp_path: Path) -> None:
    """Other file types and missing folders are errors."""
    with pytest.raises(ConfigError, match=words):
        check_picture_path(str(tmp_path / name))


def test_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error states how matplotlib can be installed."""
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"needs matplotlib .*pip install 'orch-agents\[plot\]'"):
        check_picture_path(str(tmp_path / "a.svg"))


def test_unwritable_plot_is_an_error(tmp_path: Path) -> None:
    """A folder in the place of the picture is an error that names the path."""
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(StoreError, match=r"a\.svg: Is a directory"):
        draw([outcome("none")], [3], tmp_path / "a.svg", usd=3.0)


def run(home: Path, monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    """Run `orch` with `home` as its home folder."""
    monkeypatch.setenv("ORCH_HOME", str(home))
    return cli.run(list(argv))


def test_replay_command_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--plot` draws all files into one picture and prints its path; a wrong file type is refused first."""
    files = [str(dump_lines(tmp_path / f"s{number}.jsonl", pi(3 + number))) for number in range(5)]
    picture = tmp_path / "p.svg"
    given = ("replay", *files, "--policy", "none,mask", "--evidence", "0", "--plot")
    assert run(tmp_path / "home", monkeypatch, *given, str(picture)) == 0
    assert capsys.readouterr().out.endswith(f"\n\nDrawn: {picture}\n")
    found = texts(ElementTree.parse(picture).getroot())
    assert "s0.jsonl, s1.jsonl, s2.jsonl and 2 more" in found
    assert "model calls, 5 conversations one after the other" in found
    assert run(tmp_path / "home", monkeypatch, *given, "p.gif") == 2
    assert "p.gif" in capsys.readouterr().err


def test_terminal_shows_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each policy has one line with at most 100 updates, which is removed at the end."""
    session = dump_lines(tmp_path / "s.jsonl", pi(120))
    given = ("replay", str(session), "--policy", "none", "--evidence", "0")
    assert run(tmp_path / "home", monkeypatch, *given) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run(tmp_path / "home", monkeypatch, *given) == 0
    steps = capsys.readouterr().err.split("\r\x1b[K")
    assert len(steps) == 1 + 100 + 1
    assert steps[-1] == ""
    assert steps[-2] == bar("none", 480, 480)
    assert all(len(step) < 80 for step in steps)


def test_bar_fills() -> None:
    """A quarter of the calls fills a quarter of the bar."""
    assert bar("balanced", 1, 4) == f"balanced         [{'#' * 5}{'.' * 15}] 1 of 4 calls"
    assert "searching for" in bar("balanced", 4, 4)
