"""What the project says is about the project alone, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from source_tree import ROOT, broken, texts

pytestmark = pytest.mark.timeout(240)  # each looks through all there is
FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.~/{}])/(work|root|home|opt|Users|mnt|workspaces?)/\w",
    "a host of a package registry": r"pypi\.|pythonhosted|npmjs\.|(--|_)index[-_]url|registry\.(npmjs|yarnpkg)",
    "unfinished business": r"\b(TODO|FIXME|XXX|TBD)\b|lorem ipsum|coming soon",
}
SELF = Path(__file__).resolve()
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name(path: Path) -> str:
    """Return `path` relative to the repository."""
    return str(path.relative_to(ROOT))


def offences(text: str) -> list[str]:
    """Return what in `text` does not belong to the project, each with its reason."""
    found = []
    for reason, pattern in FORBIDDEN.items():
        flags = re.IGNORECASE if reason != "unfinished business" else 0
        found += [f"{reason}: {match[0]}" for match in re.finditer(pattern, text, flags)]
    return found


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings in the markdown `text`."""
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def targets(page: Path) -> list[tuple[Path, str]]:
    """Return the file and the anchor of each link of `page` that stays in the repository."""
    found = []
    for link in LINK.findall(page.read_text()):
        if not re.match(r"[a-z]+:", link):
            file, _, anchor = link.partition("#")
            found.append(((page.parent / file).resolve() if file else page, anchor))
    return found


def lost(page: Path) -> list[str]:
    """Return the links of `page` that lead to no file, or to no heading of it."""
    return [
        f"{target}#{anchor}"
        for target, anchor in targets(page)
        if not target.exists() or (anchor and anchor not in anchors(target.read_text()))
    ]


def test_speaks_of_the_project_alone() -> None:
    """No file tells of machines, registries, or unfinished business."""
    paths = [path for path in texts() if path != SELF]
    assert len(paths) > 500
    assert broken(lambda path: offences(path.read_text(errors="replace")), paths, name) == {}


def test_links_resolve() -> None:
    """Each link inside the repository leads to a file, and to a heading where it names one."""
    assert broken(lost, PAGES, name) == {}


def test_every_page_can_be_reached() -> None:
    """Following links from README.md leads to every page of docs/."""
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            waiting += [target for target, _ in targets(page)]
    assert [name(page) for page in PAGES if page not in reached] == []


@pytest.mark.parametrize(
    "text",
    [
        "see /home/somebody/orch",
        "pip install --index-url x",
        "x = 1  # TODO",
    ],
)
def test_offences_are_seen(text: str) -> None:
    """Each kind of thing that does not belong here is found."""
    assert len(offences(text)) == 1


@pytest.mark.parametrize("text", ["$HOME/orch", "docs/work/list", "an issue of trust", "the registry. It", "todo list"])
def test_ordinary_words_pass(text: str) -> None:
    """Words that merely resemble an offence are none."""
    assert offences(text) == []


def test_anchors_follow_headings() -> None:
    """A heading's anchor is its text in lower case, without punctuation, dashes for spaces."""
    assert anchors("# What survives?\n\ntext\n\n## `orch list`: agents\n") == {"what-survives", "orch-list-agents"}


RIDDLES = re.compile(
    r"\b(whoever|whomever|whatever|wherever|nobody|somebody|anybody|anew|thereof|of its own accord|what is no"
    r"|(?:is|are|was|were) to be|comes? to be|(?:is|are|was) told|said of)\b",
    re.IGNORECASE,
)
MOST_RIDDLES = 3.0
"""Per 1,000 words outside code and quotations."""
UNREVISED = {
    *("archival", "backends", "compaction", "memory", "processes", "reliability", "sessions", "workspace"),
    *("design/archival", "design/departures", "design/processes", "design/store", "design/tree", "parity"),
}
"""Pages that are still to be rewritten in plain English; a page that is leaves this list."""


def riddles(text: str) -> float:
    """Return how many phrases per 1,000 words of the markdown `text` technical prose does not need."""
    prose = re.sub(r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"", "", text, flags=re.DOTALL)
    return 1000 * len(RIDDLES.findall(prose)) / max(1, len(re.findall(r"[A-Za-z']+", prose)))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_pages_are_written_in_plain_english(page: Path) -> None:
    """A page has few phrases that have to be read twice, unless it is listed as not rewritten yet."""
    listed = str(page.relative_to(ROOT)).removeprefix("docs/").removesuffix(".md") in UNREVISED
    if not listed:
        assert riddles(page.read_text()) <= MOST_RIDDLES


def test_riddles_are_counted_outside_code_and_quotations() -> None:
    """The word list looks at prose only."""
    assert riddles("whoever asks waits") > MOST_RIDDLES
    assert riddles('```\nwhoever\n```\n`whoever` "whoever" plain words') == 0
