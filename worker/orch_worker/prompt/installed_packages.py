"""Descriptions of installed Python packages, read from metadata without importing the packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from orch_protocol.agent.project import ContextFile

from ..tools.files.gitignore import OnRead

__all__ = ["pages_of"]

MAX_PACKAGES: Final = 8
MAX_CHARS: Final = 4_000
ENVIRONMENTS: Final = (".venv", "venv")
_DECORATION: Final = re.compile(r"\s*(<|\[?!\[|\.\. |:\w+: |[=~^-]{3,}\s*$)")
"""Lines with images, badges or HTML, which contain no information for a model."""
_GAPS: Final = re.compile(r"\n{3,}")
NOT_INSTALLED: Final = "it is not installed"


def pages_of(folder: Path, names: Iterable[str], note: OnRead) -> tuple[ContextFile, ...]:
    """Return one page for each package in `names`.

    The packages are searched in the virtual environment of the project in `folder` and in orch's own environment.
    """
    places = list(_places(folder))
    for place in places:
        note(Path(place))
    return tuple(_page(name, places) for name in list(names)[:MAX_PACKAGES])


def _places(folder: Path) -> Iterator[str]:
    for environment in ENVIRONMENTS:
        yield from map(str, sorted((folder / environment).glob("lib/python3*/site-packages")))


def _page(name: str, places: list[str]) -> ContextFile:
    try:
        found = next(iter(metadata.distributions(name=name, path=places)), None) if places else None
        found = found or next(iter(metadata.distributions(name=name)), None)
        return (
            ContextFile(name, _documentation(found)) if found is not None else ContextFile(name, problem=NOT_INSTALLED)
        )
    except (OSError, ValueError, KeyError) as error:
        return ContextFile(name, problem=f"its metadata cannot be read: {error}")


def _documentation(found: metadata.Distribution) -> str:
    summary = "".join(found.metadata.get_all("Summary") or ())
    written = found.metadata.get_all("Description") or [(found.read_text("METADATA") or "").partition("\n\n")[2]]
    head = f"{found.name} {found.version}: {summary}".removesuffix(": ")
    text = _GAPS.sub("\n\n", "\n".join(_description_lines(written[0])))
    return f"{head}\n\n{text.strip()[:MAX_CHARS]}".strip()


def _description_lines(description: str) -> Iterator[str]:
    return (line.rstrip() for line in description.splitlines() if not _DECORATION.match(line))
