"""The command `orch replay` replays a recorded session under other policies.

A replay works offline, without a model. It creates real archives.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from orch_protocol.agent.config import parse_model
from orch_protocol.core.errors import ConfigError, ForeignFileError, OrchError
from orch_worker.backends.models import Model, load
from orch_worker.backends.prices import prices_of

from ...client.failure import CommandError
from ...config import paths
from ...render.columns import escape
from ...render.terminal import pluralize, safe, to_json
from ...replay import plot
from ...replay.policy_names import DEFAULT, NAMES
from ...replay.readers import ASSUMED_BESIDE, Recording, read_recordings
from ...replay.report import (
    ModelPrice,
    Outcome,
    ReplayedFile,
    ReplayPricing,
    files_table,
    legend,
    recorded_input,
    replay,
    report,
    table,
    totals,
)
from ...sessions.formats.files import SUFFIXES, check_exists, session_files
from ..command import CliCommand
from ..scratch import scratch

__all__ = ["VERBS"]

INTERRUPTED: Final = 130
MAX_ITEMS: Final = 200
BAR_WIDTH: Final = 20
MAX_TITLE_FILES: Final = 3
MAX_LISTED: Final = 20

_Source: TypeAlias = "tuple[Path, list[Recording] | None]"
"""A file, and its conversations if they were read already."""


def _replay(arguments: Namespace) -> int:
    try:
        return _replay_files(arguments)
    except KeyboardInterrupt:
        text = "interrupted before all was replayed; to replay less, pass fewer files or --policy none,balanced"
        raise CommandError("Interrupted", text, INTERRUPTED) from None


def _replay_files(arguments: Namespace) -> int:
    names = _names(arguments.policy)
    plot_path = plot.check_picture_path(arguments.plot) if arguments.plot is not None else None
    pricing = _pricing(arguments)
    models: dict[str, ModelPrice | None] = {}
    unread: dict[str, str] = {}
    sources = _distinct([source for name in arguments.files for source in _sources(Path(name), unread)])
    files: list[ReplayedFile] = []
    with contextlib.ExitStack() as stack:
        folder = _check_empty(Path(arguments.archive)) if arguments.archive else stack.enter_context(scratch())
        progress = stack.enter_context(_progress(len(sources)))
        for number, (file, recordings) in enumerate(sources, 1):
            try:
                found = read_recordings(file) if recordings is None else recordings
            except OrchError as error:
                unread[str(file)] = str(error)
                continue
            first = sum(len(each.calls) for each in files)
            calls = sum(len(recording.calls) for recording in found)
            if arguments.model is None:
                models |= {
                    name: _listed_price(name, arguments) for name in {each.model for each in found} - models.keys()
                }
            known = {name: price for name, price in models.items() if price is not None}
            terms = msgspec.structs.replace(pricing, models=known)
            outcomes = [
                replay(found, name, terms, folder, progress(number, name, calls), first=first) for name in names
            ]
            files.append(_replayed_file(file, found, outcomes, terms))
    if not files:
        raise ForeignFileError(_nothing_read(arguments.files, unread))
    data = report(files, pricing, unread)
    if plot_path is not None:
        call_counts = [calls for each in files for calls in each.calls]
        plot.draw(
            totals(files), call_counts, plot_path, usd=pricing.price.usd, title=_title([file for file, _ in sources])
        )
    for line in _warnings(files, unread):
        print(escape(line), file=sys.stderr)
    if arguments.json:
        print(to_json(data))
        return 0
    print(_text(data, with_files=len(files) > 1 or any(os.path.isdir(name) for name in arguments.files)))
    if plot_path is not None:
        print(f"\nDrawn: {safe(str(plot_path))}")
    return 0


def _sources(path: Path, unread: dict[str, str]) -> list[_Source]:
    """Return the files at `path`. A file that the user named is read at once; files of a folder are read later.

    Folders that cannot be read are added to `unread`.
    """

    def add_unread(error: OSError) -> None:
        unread[str(error.filename)] = f"cannot read {error.filename}: {error.strerror}"

    check_exists(path)
    if not path.is_dir():
        return [(path, read_recordings(path))]
    found = list(session_files(path, add_unread))
    if not found:
        raise ConfigError(f"{path} contains no files that end in {' or '.join(SUFFIXES)}: pass the recordings")
    return [(file, None) for file in found]


def _distinct(sources: Sequence[_Source]) -> list[_Source]:
    """Return the first of those `sources` that are the same file, for example by a link."""
    found: dict[str, _Source] = {}
    for file, recordings in sources:
        found.setdefault(os.path.realpath(file) if file.exists() else str(file), (file, recordings))
    return list(found.values())


def _replayed_file(
    file: Path, recordings: Sequence[Recording], outcomes: Sequence[Outcome], pricing: ReplayPricing
) -> ReplayedFile:
    return ReplayedFile(
        str(file),
        tuple(len(recording.calls) for recording in recordings),
        recorded_input(recordings, pricing),
        tuple(outcomes),
        tuple(line for recording in recordings for line in recording.skipped),
        tuple((recording.model, pricing.price_of(recording)) for recording in recordings),
        sum(pricing.beside is None and not recording.has_usage for recording in recordings),
    )


def _warnings(files: Sequence[ReplayedFile], unread: Mapping[str, str]) -> Iterator[str]:
    """Yield lines about the parts of files and the files that were left out."""
    for file in files:
        if file.skipped:
            yield f"orch: warning: {file.file} is damaged:"
            yield from (f"  {line}" for line in file.skipped[:MAX_LISTED])
            if len(file.skipped) > MAX_LISTED:
                yield f"  and {len(file.skipped) - MAX_LISTED} more (--json lists all)"
    if unread:
        yield f"orch: warning: files that are not readable recordings: {len(unread)}"
        yield from (f"  {reason}" for reason in list(unread.values())[:MAX_LISTED])
        if len(unread) > MAX_LISTED:
            yield f"  and {len(unread) - MAX_LISTED} more (--json lists all)"


def _nothing_read(names: Sequence[str], unread: Mapping[str, str]) -> str:
    reasons = "; ".join(list(unread.values())[:3])
    return f"{', '.join(names)} contains no readable recording among {len(unread)} files: {reasons}"


def _text(data: dict[str, Any], *, with_files: bool) -> str:
    parts = [pluralize(data["calls"], "model call")]
    if data["recordings"] > 1:
        parts = [f"{data['recordings']} conversations, {parts[0]}"]
    if data["recorded"] is not None:
        recorded = data["recorded"]["input_tokens"]
        deviation = 100 * (data["recorded"]["replayed"] / recorded - 1)
        parts.append(f"Recorded: {recorded:,} input tokens; replaying what it did: {deviation:+.1f} %")
    parts += _price_lines(data["prices"])
    if assumed := data["assumed_system_prompts"]:
        share = f"; {pluralize(assumed, 'conversation')}" if assumed < data["recordings"] else ""
        size = f"assumed, {ASSUMED_BESIDE:,} tokens{share}"
        parts.append(f"System prompt and tools: {size}; --system-tokens sets others")
    if with_files:
        parts += ["", safe(files_table(data))]
    return "\n".join([*parts, "", safe(table(data)), "", legend(with_files=with_files)])


def _price_lines(prices: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield lines about the prices that were used, with the number of conversations if there are several prices."""
    for price in prices:
        model = safe(price["model"])
        name = f"assumed{model and f' for {model}'}" if price["is_assumed"] else model
        share = f"; {pluralize(price['recordings'], 'conversation')}" if len(prices) > 1 else ""
        more = "; --model sets others" if price["is_assumed"] else ""
        yield f"Prices: {name}, ${price['usd_per_million']:g} per million input tokens{share}{more}"


def _title(files: Sequence[Path]) -> str:
    more = len(files) - MAX_TITLE_FILES
    return ", ".join(file.name for file in files[:MAX_TITLE_FILES]) + (f" and {more} more" if more > 0 else "")


def _pricing(arguments: Namespace) -> ReplayPricing:
    price = _with_options(ModelPrice(), arguments)
    if arguments.model is not None:
        price = _price_of(arguments.model, _model(arguments.model), arguments)
    lifetime = None if arguments.cache_minutes is None else 60.0 * arguments.cache_minutes
    sizes = (arguments.system_tokens, lifetime, arguments.window, arguments.summary_tokens, arguments.evidence)
    prices: tuple[float, ...] = msgspec.structs.astuple(price.prices)
    numbers = [number for number in (*sizes, *prices, price.usd) if number is not None]
    if not all(0 <= value < math.inf for value in numbers) or not arguments.window or not arguments.summary_tokens:
        raise ConfigError("prices and sizes must be at least 0, --window and --summary-tokens at least 1")
    return ReplayPricing(
        price=price,
        beside=arguments.system_tokens,
        lifetime=lifetime,
        window=arguments.window,
        summary_tokens=arguments.summary_tokens,
        items=arguments.evidence,
    )


def _with_options(price: ModelPrice, arguments: Namespace) -> ModelPrice:
    """Return `price` with the prices of the command line."""
    given = {"read": arguments.cache_read, "write": arguments.cache_write, "output": arguments.output_price}
    own = {kind: each for kind, each in given.items() if each is not None}
    usd = price.usd if arguments.usd is None else arguments.usd
    return ModelPrice(price.model, msgspec.structs.replace(price.prices, **own), usd)


def _price_of(name: str, model: Model, arguments: Namespace) -> ModelPrice:
    return _with_options(ModelPrice(name, prices_of(model), model.price_at(0).input or 0.0), arguments)


def _listed_price(recorded: str, arguments: Namespace) -> ModelPrice | None:
    """Return the price of the model that a recording names. Return None if it is unknown."""
    provider, _, name = recorded.rpartition(":")
    found = load(paths.home(os.environ)).find_priced(name, provider) if name else None
    return _price_of(*found, arguments) if found is not None else None


def _model(name: str) -> Model:
    """Return the catalog entry of the model `provider:name`. Raises ConfigError if its price is unknown."""
    from orch_worker.backends.registry import unknown_provider  # imported here because only --model needs it

    spec, known = parse_model(name), load(paths.home(os.environ))
    if spec.provider not in known.providers:
        raise unknown_provider(spec, known)
    model = known.look_up(spec.provider, spec.model)
    if not model.price_known:
        raise ConfigError(f"the price of {name} is unknown: choose one from `orch models`, or pass --usd and others")
    return model


def _names(argument: str | None) -> list[str]:
    names = list(DEFAULT) if argument is None else [name for name in argument.replace(",", " ").split() if name]
    if unknown := [name for name in names if name not in NAMES]:
        raise ConfigError(f"unknown policy {unknown[0]!r}: use one of {', '.join(NAMES)}")
    if not names:
        raise ConfigError(f"no policy given: use one of {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def _check_empty(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: pass a new or empty folder for the archives")
    return folder


@contextlib.contextmanager
def _progress(files: int) -> Iterator[Callable[[int, str, int], Callable[[int], None]]]:
    """Yield a function that returns the progress callback for a file, a policy and a number of calls.

    On a terminal, the callback draws a bar. The bar is erased at the end.
    """
    if not sys.stderr.isatty():
        yield lambda _file, _name, _calls: lambda _: None
        return

    def make_callback(file: int, name: str, calls: int) -> Callable[[int], None]:
        label = f"file {file} of {files}, " if files > 1 else ""

        def show(done: int) -> None:
            if 100 * done // calls > 100 * (done - 1) // calls:
                print(f"\r\x1b[K{label}{bar(name, done, calls)}", end="", file=sys.stderr, flush=True)

        return show

    try:
        yield make_callback
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bar(name: str, done: int, calls: int) -> str:
    """Return the progress of the policy `name` as one line of less than 80 characters."""
    if done >= calls:
        return f"{name:16} searching for facts that left the conversation"
    filled = BAR_WIDTH * done // calls
    return f"{name:16} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done} of {calls} calls"


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        metavar="FILE",
        nargs="+",
        help="sessions of orch or pi, transcript rows, or plain messages; a folder stands for its files",
    )
    add("--policy", metavar="NAMES", help=f"policies: {', '.join(NAMES)} (default: {','.join(DEFAULT)})")
    add("--archive", metavar="FOLDER", help="keep the archives in this empty or new folder")
    add("--plot", metavar="PICTURE", help="plot request size and cost per call: .png or .svg")
    add(
        "--evidence",
        type=int,
        default=MAX_ITEMS,
        metavar="N",
        help=f"look for N items of each kind (default {MAX_ITEMS})",
    )
    add("--window", type=int, default=200_000, metavar="TOKENS", help="the model's context window (200000)")
    add(
        "--system-tokens",
        type=int,
        metavar="TOKENS",
        help="tokens of system prompt and tools (as recorded, else 12000)",
    )
    add("--summary-tokens", type=int, default=220, metavar="TOKENS", help="tokens of a model's summary of a turn (220)")
    add(
        "--model",
        metavar="MODEL",
        help="use the prices of PROVIDER:MODEL for all; the options below override them",
    )
    add("--cache-read", type=float, metavar="X", help="price of a cached token, relative to an uncached one (0.1)")
    add("--cache-write", type=float, metavar="X", help="price of writing a token to the cache, relative (1.25)")
    add("--output-price", type=float, metavar="X", help="price of an output token, relative (5)")
    add("--cache-minutes", type=float, metavar="N", help="lifetime of an unused cache entry (unlimited)")
    add(
        "--usd",
        type=float,
        metavar="X",
        help="US dollars for a million uncached input tokens (of the model, else 3)",
    )


VERBS = {
    "replay": CliCommand(
        "Replay recorded sessions under other policies: cost, size, and how many facts can still be found. Offline.",
        "orch replay session.jsonl --policy none,compaction,balanced",
        _arguments,
        _replay,
    )
}
