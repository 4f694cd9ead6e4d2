"""Files mention only the project, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from source_tree import ROOT, broken, texts

pytestmark = pytest.mark.timeout(240)  # each test reads all files
FORBIDDEN = {
    "an absolute path of one machine": r"(?<![\w.~/{}])/(work|root|home|opt|Users|mnt|workspaces?)/\w",
    "a host of a package registry": r"pypi\.|pythonhosted|npmjs\.|(--|_)index[-_]url|registry\.(npmjs|yarnpkg)",
    "unfinished text": r"\bTBD\b|lorem ipsum|coming soon",
}
SELF = Path(__file__).resolve()
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name(path: Path) -> str:
    """Return `path` relative to the repository."""
    return str(path.relative_to(ROOT))


def offences(text: str) -> list[str]:
    """Return the parts of `text` that do not belong to the project, each with a reason."""
    found = []
    for reason, pattern in FORBIDDEN.items():
        flags = re.IGNORECASE if reason != "unfinished text" else 0
        found += [f"{reason}: {match[0]}" for match in re.finditer(pattern, text, flags)]
    return found


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings in the markdown `text`."""
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def targets(page: Path) -> list[tuple[Path, str]]:
    """Return the file and the anchor of each link of `page` to a file of the repository."""
    found = []
    for link in LINK.findall(page.read_text()):
        if not re.match(r"[a-z]+:", link):
            file, _, anchor = link.partition("#")
            found.append(((page.parent / file).resolve() if file else page, anchor))
    return found


def lost(page: Path) -> list[str]:
    """Return the links of `page` to a missing file or heading."""
    return [
        f"{target}#{anchor}"
        for target, anchor in targets(page)
        if not target.exists() or (anchor and anchor not in anchors(target.read_text()))
    ]


def test_files_mention_only_the_project() -> None:
    """No file mentions machines, package registries or unfinished work."""
    paths = [path for path in texts() if path != SELF]
    assert len(paths) > 500
    assert broken(lambda path: offences(path.read_text(errors="replace")), paths, name) == {}


def test_links_resolve() -> None:
    """Each link to a file of the repository leads to an existing file, and to an existing heading if it names one."""
    assert broken(lost, PAGES, name) == {}


def test_every_page_can_be_reached() -> None:
    """The links from README.md lead to every page of docs/."""
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
        "Profiles are coming soon.",
    ],
)
def test_forbidden_text_is_detected(text: str) -> None:
    """The check reports every kind of text that does not belong to the project."""
    assert len(offences(text)) == 1


@pytest.mark.parametrize("text", ["$HOME/orch", "docs/work/list", "an issue of trust", "the registry. It"])
def test_similar_words_are_allowed(text: str) -> None:
    """The check accepts words that only resemble forbidden text."""
    assert offences(text) == []


def test_anchors_follow_headings() -> None:
    """The anchor of a heading is its text in lower case, without punctuation and with dashes for spaces."""
    assert anchors("# What survives?\n\ntext\n\n## `orch list`: agents\n") == {"what-survives", "orch-list-agents"}


UNCLEAR_PHRASES = re.compile(
    r"\b(whoever|whomever|whatever|wherever|nobody|somebody|anybody|anew|thereof|of its own accord|what is no"
    r"|(?:is|are|was|were) to be|comes? to be|(?:is|are|was) told|said of)\b",
    re.IGNORECASE,
)
MAX_UNCLEAR_PHRASES = 3.0
"""The maximum per 1,000 words, outside code and quotations."""


def unclear_phrases(text: str) -> float:
    """Return the number of unclear phrases per 1,000 words of the markdown `text`."""
    prose = re.sub(r"```.*?```|`[^`\n]*`|\"[^\"\n]*\"", "", text, flags=re.DOTALL)
    return 1000 * len(UNCLEAR_PHRASES.findall(prose)) / max(1, len(re.findall(r"[A-Za-z']+", prose)))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_pages_are_written_in_plain_english(page: Path) -> None:
    """A page has few unclear phrases."""
    assert unclear_phrases(page.read_text()) <= MAX_UNCLEAR_PHRASES


def test_unclear_phrases_are_counted_outside_code_and_quotations() -> None:
    """The check ignores code and quotations."""
    assert unclear_phrases("Whoever calls it gets whatever is left.") > MAX_UNCLEAR_PHRASES
    assert unclear_phrases('```\nwhoever\n```\n`whoever` "whoever" plain words') == 0
