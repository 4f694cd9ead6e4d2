"""`orch replay`: a recorded session under other policies. Offline, no model; the archives are really made."""

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
from orch_worker.backends.models import Model, load, price_at

from ...archival.plan.economics import Prices, prices_of
from ...config import paths
from ...render.terminal import safe, to_json
from ...replay import plot
from ...replay.policies import DEFAULT, NAMES
from ...replay.readers import read_recordings
from ...replay.report import USD_PER_MILLION, ReplayPricing, replay, report, table
from ..command import CliCommand
from ..scratch import scratch

__all__ = ["VERBS"]

ITEMS: Final = 200
BAR: Final = 30
TITLED: Final = 3


def _replay(arguments: Namespace) -> int:
    names = _names(arguments.policy)
    picture = plot.check_picture_path(arguments.plot) if arguments.plot is not None else None
    files = [Path(name) for name in arguments.files]
    recordings = [recording for file in files for recording in read_recordings(file)]
    terms = _terms(arguments)
    calls = sum(len(recording.calls) for recording in recordings)
    with contextlib.ExitStack() as stack:
        folder = _empty(Path(arguments.archive)) if arguments.archive else stack.enter_context(scratch())
        with _progress(calls) as progress:
            outcomes = [replay(recordings, name, terms, folder, progress(name)) for name in names]
    data = report(files, recordings, outcomes, terms)
    if picture is not None:
        each = [len(recording.calls) for recording in recordings]
        plot.draw(outcomes, each, picture, usd=terms.usd, title=_title(files))
    if arguments.json:
        print(to_json(data))
        return 0
    told = data["recorded"]
    print(f"{len(recordings)} conversations, {calls} model calls" if len(recordings) > 1 else f"{calls} model calls")
    if told is not None:
        off = 100 * (told["replayed"] / told["input_tokens"] - 1)
        print(f"Recorded: {told['input_tokens']:,} input tokens; replaying what it did: {off:+.1f} %")
    print(f"\n{safe(table(data))}")
    if picture is not None:
        print(f"\nDrawn: {safe(str(picture))}")
    return 0


def _title(files: list[Path]) -> str:
    more = len(files) - TITLED
    return ", ".join(file.name for file in files[:TITLED]) + (f" and {more} more" if more > 0 else "")


def _terms(arguments: Namespace) -> ReplayPricing:
    prices, usd = Prices(), USD_PER_MILLION
    if arguments.model is not None:
        model = _model(arguments.model)
        prices, usd = prices_of(model), price_at(model, 0).input or 0.0
    said = {"read": arguments.cache_read, "write": arguments.cache_write, "output": arguments.output_price}
    given = {
        "prices": msgspec.to_builtins(prices) | {kind: price for kind, price in said.items() if price is not None},
        "beside": arguments.system_tokens,
        "lifetime": None if arguments.cache_minutes is None else 60.0 * arguments.cache_minutes,
        "window": arguments.window,
        "summary_tokens": arguments.summary_tokens,
        "usd": usd if arguments.usd is None else arguments.usd,
        "items": arguments.evidence,
    }
    numbers = [value for value in (*given.values(), *given["prices"].values()) if isinstance(value, (int, float))]
    if not all(0 <= value < math.inf for value in numbers) or not arguments.window or not arguments.summary_tokens:
        raise ConfigError("prices and sizes are numbers from 0, --window and --summary-tokens from 1")
    return msgspec.convert(given, ReplayPricing)


def _model(name: str) -> Model:
    """Return what is known of the model `provider:name`. Raises ConfigError when that is not what it costs."""
    spec = parse_model(name)
    model = load(paths.home(os.environ)).look_up(spec.provider, spec.model)
    if not model.price_known:
        raise ConfigError(f"what {name} costs is not known: `orch models` lists what is, --usd and others say it")
    return model


def _names(given: str | None) -> list[str]:
    names = list(DEFAULT) if given is None else [name for name in given.replace(",", " ").split() if name]
    if unknown := [name for name in names if name not in NAMES]:
        raise ConfigError(f"unknown policy {unknown[0]!r}: choose of {', '.join(NAMES)}")
    if not names:
        raise ConfigError(f"no policy is named: choose of {', '.join(NAMES)}")
    return list(dict.fromkeys(names))


def _empty(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: archives of this replay need one of their own")
    return folder


@contextlib.contextmanager
def _progress(calls: int) -> Iterator[Callable[[str], Callable[[int], None]]]:
    """Give what gives the bar of a policy, for whom a terminal shows it; the line is gone in the end."""
    if not sys.stderr.isatty():
        yield lambda _: lambda _: None
        return

    def shown(name: str) -> Callable[[int], None]:
        def show(done: int) -> None:
            if 100 * done // calls > 100 * (done - 1) // calls:
                print(f"\r\x1b[K{bar(name, done, calls)}", end="", file=sys.stderr, flush=True)

        return show

    try:
        yield shown
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def bar(name: str, done: int, calls: int) -> str:
    """Return how far the policy `name` is, as one line of less than 80 characters."""
    if done >= calls:
        return f"{name:13} looking for what left the conversation"
    full = BAR * done // calls
    return f"{name:13} [{'#' * full}{'.' * (BAR - full)}] {done} of {calls} calls"


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="sessions of ours or pi's, rows of transcripts, plain messages")
    add("--policy", metavar="NAMES", help=f"of {', '.join(NAMES)} ({','.join(DEFAULT)})")
    add("--archive", metavar="FOLDER", help="keep the archives in this empty or new folder")
    add("--plot", metavar="PICTURE", help="draw request size and cost over the calls: .png or .svg")
    add("--evidence", type=int, default=ITEMS, metavar="N", help=f"look for N items of each kind (default {ITEMS})")
    add("--window", type=int, default=200_000, metavar="TOKENS", help="the model's context window (200000)")
    add("--system-tokens", type=int, metavar="TOKENS", help="system prompt and tools (as recorded, else 12000)")
    add("--summary-tokens", type=int, default=220, metavar="TOKENS", help="a model's summary of a turn (220)")
    add("--model", metavar="MODEL", help="PROVIDER:MODEL, at whose prices; what is given below goes before them")
    add("--cache-read", type=float, metavar="X", help="price of a cached token (0.1 of an uncached one)")
    add("--cache-write", type=float, metavar="X", help="price of caching a token (1.25)")
    add("--output-price", type=float, metavar="X", help="price of an output token (5)")
    add("--cache-minutes", type=float, metavar="N", help="how long an unused cache lives (for ever)")
    add("--usd", type=float, metavar="X", help="dollars a million uncached input tokens (3)")


VERBS = {
    "replay": CliCommand(
        "Replay recorded sessions under other policies: cost, size, and what can still be found. Offline.",
        "orch replay session.jsonl --policy none,compaction,auto",
        _arguments,
        _replay,
    )
}
