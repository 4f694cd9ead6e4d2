"""Replays: the cost of requests, policies, evidence, the report, and the `orch replay` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch import cli
from orch.api.archiver import Archiver
from orch.replay.bill import Bill, Meter
from orch.replay.policies import NAMES, ReplaySetting, filler_text, policy_named
from orch.replay.readers import ASSUMED_BESIDE, Recording, read_recordings, scale_of
from orch.replay.report import Outcome, ReplayPricing, recorded_input, replay, report, table
from orch.replay.retained_facts import Share, evidence_in, reachable_shares, sample_evenly
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_worker.backends.prices import Prices
from recordings import chat, dump_lines, pi

TERMS = ReplayPricing(items=50)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A recorded session of 40 turns, whose full history grows to about 100,000 tokens."""
    return dump_lines(tmp_path / "session.jsonl", pi(40, steps=6, size=1600))


@pytest.fixture
def recordings(session: Path) -> list[Recording]:
    """The recordings that `session` contains."""
    return read_recordings(session)


# Prices.


def test_common_prefix_is_read_from_the_cache() -> None:
    """Cached tokens cost a tenth; the other tokens are written to the cache, except the tail."""
    meter = Meter(Prices())
    a, b, c = object(), object(), object()
    meter.request([(a, 1000), (b, 100)], 10)
    assert meter.bill == Bill(1100 * 1.25 + 50, 1100, 0, 10, 1100, 1)
    meter.request([(a, 1000), (b, 100), (c, 200)], 0, tail=40)
    assert meter.bill.units == pytest.approx(1425 + 110 + 250 + 40)
    assert (meter.bill.cached_tokens, meter.bill.peak_tokens) == (1100, 1340)


def test_change_in_the_middle_breaks_the_cache_from_there() -> None:
    """Everything after the first difference is written to the cache again."""
    meter = Meter(Prices())
    a, b, c = object(), object(), object()
    meter.request([(a, 100), (b, 100), (c, 100)], 0)
    before = meter.bill.units
    meter.request([(a, 100), (object(), 1), (c, 100)], 0)
    assert meter.bill.units - before == pytest.approx(10 + 101 * 1.25)


def test_cache_does_not_outlive_its_time() -> None:
    """After a pause longer than the lifetime of the cache, the whole request is written again."""
    for lifetime, cached in ((300.0, 0), (None, 100)):
        meter = Meter(Prices(), lifetime)
        part = [(TERMS, 100)]
        meter.request(part, 0, at=0.0)
        meter.request(part, 0, at=301.0)
        assert meter.bill.cached_tokens == cached


def test_summary_requests_are_counted_separately() -> None:
    """The cost of a summary is in the bill and in a separate sum."""
    meter = Meter(Prices())
    meter.extra(7.0)
    assert (meter.bill.units, meter.bill.extra_units, meter.bill.requests) == (7.0, 7.0, 0)


# Scale.


def test_replayed_sizes_match_reported_ones(recordings: list[Recording]) -> None:
    """The replayed input tokens differ from the reported ones by at most 2 %."""
    found = recorded_input(recordings, TERMS)
    assert found is not None
    assert found[1] == pytest.approx(found[0], rel=0.02)
    assert scale_of(recordings[0]).beside == pytest.approx(2000, rel=0.05)


def test_system_prompt_size_is_assumed_without_reports(tmp_path: Path) -> None:
    """The assumed 12,000 tokens include the recorded system prompt and tools."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(chat(2)))
    (found,) = read_recordings(path)
    scale = scale_of(found)
    assert not scale.measured
    assert ASSUMED_BESIDE - 10 < scale.beside < ASSUMED_BESIDE
    assert scale_of(found, 500).beside == 500
    assert recorded_input([found], TERMS) is None


# Policies.


@pytest.mark.parametrize("name", NAMES)
def test_policy_keeps_requests_whole(recordings: list[Recording], tmp_path: Path, name: str) -> None:
    """In the requests of each policy, each call has its result and each result its call."""
    (recording,) = recordings
    policy = policy_named(name, ReplaySetting(scale_of(recording), Prices(), tmp_path / name, window=60_000))
    context: list[Message] = []
    for place, each in enumerate(recording.messages):
        if place in recording.calls:
            context = policy.before(context, lambda _: None)
            calls = [block.id for message in context for block in message.content if isinstance(block, ToolUse)]
            results = [
                block.tool_use_id for message in context for block in message.content if isinstance(block, ToolResult)
            ]
            assert calls == results
        context = [*context, each.message]
    policy.close()


def test_archival_is_cheaper_than_other_policies(recordings: list[Recording], tmp_path: Path) -> None:
    """On a long session, archival is cheaper than compaction and masking, and compaction is cheaper than no policy."""
    terms = ReplayPricing(items=0, window=60_000)
    cost = {name: replay(recordings, name, terms, tmp_path).bill.units for name in NAMES}
    assert cost["compaction"] < 0.8 * cost["none"]
    assert cost["compaction-1m"] == cost["none"]
    for name in ("auto", "economy", "roomy"):
        assert cost[name] < 0.6 * cost["compaction"]
        assert cost[name] < cost["mask"]
    assert cost["auto"] == cost["balanced"]
    assert cost["auto-receipt"] <= cost["auto"]


def test_archival_finds_all_evidence_compaction_loses(recordings: list[Recording], tmp_path: Path) -> None:
    """One search finds archived text; compaction loses at least 30 % of the paths."""
    auto = replay(recordings, "auto", TERMS, tmp_path)
    assert {kind: share.ratio for kind, share in auto.evidence.items()} == dict.fromkeys(auto.evidence, 1.0)
    assert auto.evidence["paths"].asked == 50
    compacted = replay(recordings, "compaction", ReplayPricing(items=50, window=30_000), tmp_path)
    assert compacted.evidence["paths"].ratio < 0.7


def test_archives_are_really_made(recordings: list[Recording], tmp_path: Path) -> None:
    """The archives of a replay can be opened and read."""
    outcome = replay(recordings, "economy", TERMS, tmp_path)
    with Archiver(tmp_path / "economy-0000", "orch") as archiver:
        records = archiver.archives()
        assert len(records) == outcome.holders > 10
        last = [record for record in records if record.kind == "turn"][-1]
        found = archiver.read_archive(last.id)
    assert found[0] == next(each.message for each in recordings[0].messages if each.message == found[0])


def test_short_dialogue_costs_no_more(tmp_path: Path) -> None:
    """If archiving cannot save tokens, nothing is archived, and the cost is the same."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(chat(3)))
    found = read_recordings(path)
    none, auto = (replay(found, name, TERMS, tmp_path) for name in ("none", "auto"))
    assert auto.bill == none.bill
    assert auto.holders == 0


def test_progress_counts_calls(recordings: list[Recording], tmp_path: Path) -> None:
    """The callback gets the number of replayed calls after each call."""
    seen: list[int] = []
    replay(recordings, "none", TERMS, tmp_path, seen.append)
    assert seen == list(range(1, 281))


def test_unknown_policy_is_named(recordings: list[Recording], tmp_path: Path) -> None:
    """The error lists the known policies."""
    with pytest.raises(ConfigError, match=r"'prayer'.*compaction"):
        replay(recordings, "prayer", TERMS, tmp_path)


def test_filler_contains_no_evidence(recordings: list[Recording]) -> None:
    """The text that replaces a summary has the size of the summary, and contains no evidence."""
    estimator = scale_of(recordings[0]).estimator
    for tokens in (5, 220, 3000):
        assert estimator.text(filler_text(tokens, estimator)) == pytest.approx(tokens, abs=2)
    assert evidence_in([user(filler_text(220, estimator))]) == {"paths": [], "commands": [], "numbers": [], "edits": []}


# Evidence.


def test_evidence_is_what_may_be_needed_again() -> None:
    """Evidence is paths with a slash, whole command lines, edited lines, and numbers with 3 digits or a unit."""
    edit = ToolUse("e", "edit", {"path": "src/a.py", "newText": "x = compute(1)\n}\n", "oldText": "y = compute(2)"})
    bash = ToolUse("b", "bash", {"command": "make test\nls"})
    result = ToolResult("b", (Text("ok ./src/b.py:12 and https://x.org/y took 12.5 ms, 7 of 1,024; v1.2"),))
    found = evidence_in([Message("assistant", (edit, bash)), Message("user", (result,)), assistant("4711 or 12")])
    assert found["commands"] == ["make test"]
    assert found["edits"] == ["y = compute(2)", "x = compute(1)"] or found["edits"] == [
        "x = compute(1)",
        "y = compute(2)",
    ]
    assert {"src/a.py", "./src/b.py"} <= set(found["paths"])
    assert found["numbers"] == ["12.5 ms", "1,024", "4711"]


def test_evidence_in_the_conversation_needs_no_search() -> None:
    """Items in the conversation and items that one search returns count as reachable."""
    items = {"paths": ["a/b", "c/d", "e/f"]}
    found = reachable_shares(items, [user("see a/b")], lambda item: item if item == "c/d" else "no", 10)
    assert found == {"paths": Share(2, 3, 3)}
    assert reachable_shares(items, [user("see a/b")], None, 2) == {"paths": Share(1, 2, 3)}
    assert Share().ratio == 1.0
    assert sample_evenly([str(n) for n in range(10)], 3) == ["0", "3", "6"]


# Report.


def test_report_has_the_promised_keys(session: Path, recordings: list[Recording], tmp_path: Path) -> None:
    """The report has the files, each policy with cost and sizes, and the evidence that the default profile keeps."""
    outcomes = [replay(recordings, name, TERMS, tmp_path) for name in ("none", "auto")]
    data = json.loads(json.dumps(report([session], recordings, outcomes, TERMS)))
    assert data["files"] == [str(session)]
    assert data["calls"] == 280
    assert set(data["evidence"]) == {"paths", "commands", "numbers", "edits"}
    promised = {
        "name",
        "cost_units",
        "cost_usd",
        "input_tokens",
        "cached_tokens",
        "peak_tokens",
        "collapses",
        "holders",
    }
    assert all(promised <= set(row) for row in data["policies"])
    none, auto = data["policies"]
    assert none["cost_percent"] == 100
    assert auto["cost_with_recalls"] > auto["cost_units"]
    assert auto["cost_usd"] == pytest.approx(auto["cost_units"] * 3 / 1e6, abs=1e-3)
    lines = table(data).splitlines()
    assert lines[0].startswith("POLICY")
    assert [line.split()[0] for line in lines[1:]] == ["none", "auto"]


def test_report_without_archives_has_no_evidence() -> None:
    """The evidence in the report is None if no policy archives."""
    assert report([], [], [Outcome("none")], TERMS)["evidence"] is None


# Command line.


def run(home: Path, monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    """Run `orch` with `home` as its home folder."""
    monkeypatch.setenv("ORCH_HOME", str(home))
    return cli.run(list(argv))


def test_replay_command(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`orch replay` prints the accuracy and a row for each policy, and creates no files."""
    home = tmp_path / "home"
    assert run(home, monkeypatch, "replay", str(session), "--policy", "none,auto", "--evidence", "5") == 0
    out = capsys.readouterr().out
    assert out.startswith("280 model calls\nRecorded: ")
    assert "100.0 %" in out
    assert not home.exists()


def test_replay_command_keeps_archives_in_a_given_folder(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--archive` keeps the archives of a replay, and refuses a folder that is not empty."""
    kept = tmp_path / "kept"
    arguments = ("replay", str(session), "--policy", "auto", "--json", "--archive", str(kept), "--evidence", "0")
    assert run(tmp_path / "home", monkeypatch, *arguments) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["holders"] > 0
    assert (kept / "auto-0000" / "archive-000001.jsonl").exists()
    assert run(tmp_path / "home", monkeypatch, *arguments) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_replay_command_takes_the_prices_of_a_model(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--model` sets the prices, and explicit prices override them."""

    def bill(*more: str) -> dict[str, Any]:
        given = ("replay", str(session), "--policy", "none", "--json", "--evidence", "0", *more)
        assert run(tmp_path / "home", monkeypatch, *given) == 0
        return dict(json.loads(capsys.readouterr().out)["policies"][0])

    usual, sonnet, cheap = bill(), bill("--model", "anthropic:claude-haiku-4-5"), bill("--model", "moonshot:kimi-k2.5")
    assert sonnet["cost_units"] == usual["cost_units"]
    assert sonnet["cost_usd"] == pytest.approx(usual["cost_usd"] / 3, abs=1e-3)
    assert cheap["cost_units"] != usual["cost_units"]
    assert bill("--model", "moonshot:kimi-k2.5", "--cache-read", "1")["cost_units"] > cheap["cost_units"]
    assert bill("--model", "ollama:qwen3")["cost_usd"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("missing.jsonl",), 1, "missing.jsonl"),
        (("SESSION", "--model", "anthropic:claude-next"), 2, "is unknown: choose one"),
        (("SESSION", "--model", "acme:large"), 2, "unknown provider 'acme'"),
        (("SESSION", "--policy", "prayer"), 2, "prayer"),
        (("SESSION", "--policy", ","), 2, "no policy"),
        (("SESSION", "--window", "0"), 2, "--window"),
        (("SESSION", "--cache-read", "-1"), 2, "at least 0"),
        (("SESSION", "--cache-read", "nan"), 2, "at least 0"),
        (("SESSION", "--window", "many"), 2, "invalid int"),
        ((), 2, "FILE"),
    ],
)
def test_replay_command_refuses_invalid_files_names_and_numbers(
    session: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    """The command prints the error and does not start the replay."""
    given = [str(session) if argument == "SESSION" else argument for argument in arguments]
    assert run(tmp_path / "home", monkeypatch, "replay", *given) == code
    assert words in capsys.readouterr().err
