"""The command `orch replay` replays a recorded session under other policies.

A replay works offline, without a model. It creates real archives.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.agent.config import parse_model
from orch_protocol.core.errors import ConfigError
from orch_worker.backends.models import Model, load
from orch_worker.backends.prices import Prices, prices_of

from ...config import paths
from ...render.terminal import safe, to_json
from ...replay import plot
from ...replay.policies import DEFAULT, NAMES
from ...replay.readers import read_recordings
from ...replay.report import USD_PER_MILLION, ReplayPricing, replay, report, table
from ..command import CliCommand
from ..scratch import scratch

__all__ = ["VERBS"]

MAX_ITEMS: Final = 200
BAR_WIDTH: Final = 30
MAX_TITLE_FILES: Final = 3


def _replay(arguments: Namespace) -> int:
    names = _names(arguments.policy)
    plot_path = plot.check_picture_path(arguments.plot) if arguments.plot is not None else None
    files = [Path(name) for name in arguments.files]
    recordings = [recording for file in files for recording in read_recordings(file)]
    pricing = _pricing(arguments)
    calls = sum(len(recording.calls) for recording in recordings)
    with contextlib.ExitStack() as stack:
        folder = _check_empty(Path(arguments.archive)) if arguments.archive else stack.enter_context(scratch())
        with _progress(calls) as progress:
            outcomes = [replay(recordings, name, pricing, folder, progress(name)) for name in names]
    data = report(files, recordings, outcomes, pricing)
    if plot_path is not None:
        call_counts = [len(recording.calls) for recording in recordings]
        plot.draw(outcomes, call_counts, plot_path, usd=pricing.usd, title=_title(files))
    if arguments.json:
        print(to_json(data))
        return 0
    recorded = data["recorded"]
    print(f"{len(recordings)} conversations, {calls} model calls" if len(recordings) > 1 else f"{calls} model calls")
    if recorded is not None:
        deviation = 100 * (recorded["replayed"] / recorded["input_tokens"] - 1)
        print(f"Recorded: {recorded['input_tokens']:,} input tokens; replaying what it did: {deviation:+.1f} %")
    print(f"\n{safe(table(data))}")
    if plot_path is not None:
        print(f"\nDrawn: {safe(str(plot_path))}")
    return 0


def _title(files: list[Path]) -> str:
    more = len(files) - MAX_TITLE_FILES
    return ", ".join(file.name for file in files[:MAX_TITLE_FILES]) + (f" and {more} more" if more > 0 else "")


def _pricing(arguments: Namespace) -> ReplayPricing:
    prices, usd = Prices(), USD_PER_MILLION
    if arguments.model is not None:
        model = _model(arguments.model)
        prices, usd = prices_of(model), model.price_at(0).input or 0.0
    prices_given = {"read": arguments.cache_read, "write": arguments.cache_write, "output": arguments.output_price}
    fields = {
        "prices": msgspec.to_builtins(prices)
        | {kind: price for kind, price in prices_given.items() if price is not None},
        "beside": arguments.system_tokens,
        "lifetime": None if arguments.cache_minutes is None else 60.0 * arguments.cache_minutes,
        "window": arguments.window,
        "summary_tokens": arguments.summary_tokens,
        "usd": usd if arguments.usd is None else arguments.usd,
        "items": arguments.evidence,
    }
    numbers = [value for value in (*fields.values(), *fields["prices"].values()) if isinstance(value, (int, float))]
    if not all(0 <= value < math.inf for value in numbers) or not arguments.window or not arguments.summary_tokens:
        raise ConfigError("prices and sizes must be at least 0, --window and --summary-tokens at least 1")
    return msgspec.convert(fields, ReplayPricing)


def _model(name: str) -> Model:
    """Return the catalog entry of the model `provider:name`. Raises ConfigError if its price is unknown."""
    spec = parse_model(name)
    model = load(paths.home(os.environ)).look_up(spec.provider, spec.model)
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
def _progress(calls: int) -> Iterator[Callable[[str], Callable[[int], None]]]:
    """Yield a function that takes the name of a policy and returns its progress callback.

    On a terminal, the callback draws a bar. The bar is erased at the end.
    """
    if not sys.stderr.isatty():
        yield lambda _: lambda _: None
        return

    def make_callback(name: str) -> Callable[[int], None]:
        def show(done: int) -> None:
            if 100 * done // calls > 100 * (done - 1) // calls:
                print(f"\r\x1b[K{bar(name, done, calls)}", end="", file=sys.stderr, flush=True)

        return show

    try:
        yield make_callback
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bar(name: str, done: int, calls: int) -> str:
    """Return the progress of the policy `name` as one line of less than 80 characters."""
    if done >= calls:
        return f"{name:13} searching for facts that left the conversation"
    filled = BAR_WIDTH * done // calls
    return f"{name:13} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done} of {calls} calls"


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="sessions of orch or pi, transcript rows, or plain messages")
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
    add("--model", metavar="MODEL", help="use the prices of PROVIDER:MODEL; the options below override them")
    add("--cache-read", type=float, metavar="X", help="price of a cached token, relative to an uncached one (0.1)")
    add("--cache-write", type=float, metavar="X", help="price of writing a token to the cache, relative (1.25)")
    add("--output-price", type=float, metavar="X", help="price of an output token, relative (5)")
    add("--cache-minutes", type=float, metavar="N", help="lifetime of an unused cache entry (unlimited)")
    add("--usd", type=float, metavar="X", help="US dollars for one million uncached input tokens (3)")


VERBS = {
    "replay": CliCommand(
        "Replay recorded sessions under other policies: cost, size, and how many facts can still be found. Offline.",
        "orch replay session.jsonl --policy none,compaction,auto",
        _arguments,
        _replay,
    )
}
