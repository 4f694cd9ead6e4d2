"""Search in many archives, compared with reading all of their text by ripgrep and by a scan in Python."""

from __future__ import annotations

import mmap
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import harness
import venvs
from harness import Args, Row
from synthetic import Worker

from orch.archival.store.search import Search
from orch.archival.store.store import ArchiveRecord, ArchiveStore, StoredMessage

ARCHIVES, STEPS, WORDS = 10_000, 6, 850
QUERIES = 500
TOP = 10
SHARES = {"identifier": 0.2, "part": 0.2, "path": 0.2, "error": 0.2, "number": 0.1, "wide": 0.05, "common": 0.05}
"""The kinds of queries, and the share of each kind."""


def measure(args: Args) -> list[Row]:
    """Fill a folder with archives, build the index, and run the queries."""
    count = ARCHIVES // 20 if args.quick else ARCHIVES
    with harness.scratch() as folder:
        archive = ArchiveStore.open(folder / "archive")
        asked, text_bytes = fill(archive, count, QUERIES // 5 if args.quick else QUERIES)
        search = Search(archive)
        begin = perf_counter()
        search.search("warm up", 1)
        built = perf_counter() - begin
        try:
            rows = questions(search, archive, asked, count, create=not args.quick)
        finally:
            search.close()
            archive.close()
        index = (folder / "archive" / "index.sqlite").stat().st_size
    size = f"{count} archives, {text_bytes >> 20} MB"
    rows.append(harness.counted(f"index over text, {size}", index / text_bytes, must="<= 0.6", aim="<= 0.4"))
    rows.append(harness.counted(f"index built, {size} (MB/s)", text_bytes / built / 1e6, must=">= 10", aim=">= 30"))
    return rows


def fill(archive: ArchiveStore, count: int, queries: int) -> tuple[list[tuple[str, str, str]], int]:
    """Archive `count` turns. Return the queries and the number of bytes of text.

    A query is a tuple of kind, text, and the id of the archive that contains the text.
    """
    worker = Worker(5)
    record = ArchiveRecord("", 0, "turn", "t", 0, 1, 2, STEPS, 1, 9000, 0, "", "orch", "done", "because")
    kinds = worker.random.choices(list(SHARES), list(SHARES.values()), k=queries)
    places = dict(zip(worker.random.sample(range(count), queries), kinds, strict=True))
    asked: list[tuple[str, str, str]] = []
    size = 0
    for number in range(count):
        needles = worker.needles(number)
        turn = worker.turn(number, STEPS, WORDS, needles)
        id = archive.add(record, [StoredMessage(message) for message in turn]).id
        size += sum(len(str(block)) for message in turn for block in message.content)
        if kind := places.get(number):
            asked.append((kind, query(worker, kind, needles), id))
    return asked, size


def query(worker: Worker, kind: str, needles: dict[str, str]) -> str:
    """Return the query of a user who searches for `needles`, or for a word that every archive contains."""
    match kind:
        case "part":
            return needles["identifier"].partition("_")[2]
        case "wide":
            return needles["wide"][1:]
        case "common":
            return worker.random.choice(worker.common)
        case _:
            return needles[kind]


def questions(
    search: Search, archive: ArchiveStore, asked: list[tuple[str, str, str]], count: int, *, create: bool
) -> list[Row]:
    """Return the time of the answers, and how often the right archive is among the first ten hits.

    If `create` is True, ripgrep is installed if it is missing.
    """
    ours, right = [], 0
    for kind, text, id in asked:
        begin = perf_counter()
        hits = search.search(text, TOP)
        ours.append(1e3 * (perf_counter() - begin))
        right += kind == "common" or id in {hit.id for hit in hits}
    files = sorted(archive.folder.glob("archive-*.jsonl"))
    few = asked[:: max(1, len(asked) // 60)]
    scans = [1e3 * timed(lambda text=text: scan(files, text)) for _, text, _ in few]
    rows = [
        faster(f"search, {count} archives, p50 (ms; peer: a scan of all text)", ours, scans, 0.5, ">= 10", ">= 20"),
        faster(f"search, {count} archives, p95 (ms; peer: a scan of all text)", ours, scans, 0.95, ">= 1", ">= 10"),
        harness.counted(
            f"right archive in the first {TOP} of {len(asked)} queries", right / len(asked), must=">= 0.99", aim=">= 1"
        ),
    ]
    figures = [(f"search, {count} archives, p50 (ms; peer: rg -F -l)", 0.5, ">= 10", ">= 20")]
    figures += [(f"search, {count} archives, p95 (ms; peer: rg -F -l)", 0.95, ">= 1", ">= 10")]
    try:
        rg = shutil.which("rg") or str(venvs.peer(venvs.RIPGREP, create=create) / "rg")
    except venvs.MissingPeerError as error:
        rows += [
            harness.skipped(figure, str(error), must=must, aim=aim, ours=[at(ours, share)])
            for figure, share, must, aim in figures
        ]
    else:
        found = [1e3 * timed(lambda text=text: ripgrep(rg, archive.folder, text)) for _, text, _ in few]
        rows += [faster(figure, ours, found, share, must, aim) for figure, share, must, aim in figures]
    return rows


def faster(figure: str, ours: list[float], peer: list[float], share: float, must: str, aim: str) -> Row:
    """Return the row that compares one quantile of both series."""
    return harness.compared(figure, [at(ours, share)], [at(peer, share)], must=must, aim=aim, inverse=True)


def at(values: list[float], share: float) -> float:
    """Return the quantile `share` of `values`."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    begin = perf_counter()
    work()
    return perf_counter() - begin


def scan(files: list[Path], text: str) -> list[Path]:
    """Read all `files` and return those that contain `text`."""
    found = []
    for file in files:
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as data:
            if data.find(text.encode()) >= 0:
                found.append(file)
    return found


def ripgrep(rg: str, folder: Path, text: str) -> None:
    """Run ripgrep to list the files that contain `text`. Its exit code is 1 if there are none."""
    command = [rg, "-F", "-l", "--no-ignore", "--glob", "*.jsonl", "-e", text, str(folder)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60)
    if done.returncode > 1:
        raise RuntimeError(f"rg ended with {done.returncode}")


if __name__ == "__main__":
    harness.main(measure)
