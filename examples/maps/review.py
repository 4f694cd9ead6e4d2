"""Asks one typed question about each Python file of a folder, six at a time.

    python examples/maps/review.py examples/bug_hunt/project

Kill the program in the middle, and run it again: it asks only about the files that have no answer yet. Without --model,
an offline model answers, which needs no key.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from orch import MapProgress, Orchestrator


@dataclass
class Review:
    """The answer about one file. `undocumented` contains the names of functions without a docstring."""

    lines: int
    undocumented: list[str]


def question(path: Path) -> str:
    """Return the prompt for one file."""
    return f"Which functions in {path} have no docstring?\n~~~\n{path.read_text()}\n~~~\n"


def show(progress: MapProgress) -> None:
    """Print the progress on stderr."""
    print(f"{progress.done} of {progress.total} files, ${progress.cost_usd:.4f}", file=sys.stderr)


def main() -> int:
    """Print one line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="offline_reviewer:OfflineReviewer")
    arguments = parser.parse_args()
    # The processes of agents import the offline model from this folder.
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    files = sorted(arguments.folder.rglob("*.py"))
    with Orchestrator(arguments.model, run="docstrings") as o:
        results = o.map(files, question, workers=6, returns=Review, tools=[], on_progress=show)
    for each in results:
        answer = each.error or f"{each.value.lines} lines, undocumented: {', '.join(each.value.undocumented) or 'none'}"
        print(f"{each.key}: {answer}{' (kept)' if each.kept else ''}")
    return int(any(each.error for each in results))


if __name__ == "__main__":
    sys.exit(main())
