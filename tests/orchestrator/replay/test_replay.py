"""Replays: the cost of requests, policies, evidence, the report, and the `orch replay` command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orch import cli
from orch.api.archiver import Archiver
from orch.replay.bill import Bill, Charge, Mark, Meter, PromptCache
from orch.replay.policies import ReplaySetting, filler_text
from orch.replay.policy_names import NAMES, policy_named
from orch.replay.readers import ASSUMED_BESIDE, Recording, read_recordings, scale_of
from orch.replay.report import Outcome, ReplayedFile, ReplayPricing, recorded_input, replay, report, table
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
    """Cached tokens cost a tenth; the other tokens are written to the cache."""
    meter = Meter(Prices())
    a, b, c = object(), object(), object()
    meter.request([(a, 1000), (b, 100)], 10)
    assert meter.bill == Bill(1100 * 1.25 + 50, 1100, 0, 10, 1100, 1)
    meter.request([(a, 1000), (b, 100), (c, 200)], 0)
    assert meter.bill.units == pytest.approx(1425 + 110 + 250)
    assert (meter.bill.cached_tokens, meter.bill.peak_tokens) == (1100, 1300)


def test_automatic_cache_has_steps() -> None:
    """A provider that charges nothing for writing reads a shared prefix in whole steps of 128 tokens."""
    meter = Meter(Prices(write=1.0))
    part = [(TERMS, 1100)]
    meter.request(part, 0)
    meter.request(part, 0)
    assert meter.bill.cached_tokens == 1024


def test_change_in_the_middle_breaks_the_cache_from_there() -> None:
    """Everything after the first difference is written to the cache again."""
    meter = Meter(Prices())
    a, b, c = object(), object(), object()
    meter.request([(a, 100), (b, 100), (c, 100)], 0)
    before = meter.bill.units
    meter.request([(a, 100), (object(), 1), (c, 100)], 0)
    assert meter.bill.units - before == pytest.approx(10 + 101 * 1.25)


def test_list_that_grows_is_billed_like_new_lists() -> None:
    """A caller may append to the list of the request before instead of passing a new list."""
    parts = [(object(), 10 * number) for number in range(1, 9)]
    grown: list[tuple[object, int]] = []
    meters = [Meter(Prices()), Meter(Prices())]
    for number, part in enumerate(parts, 1):
        grown.append(part)
        assert meters[0].request(grown, 5) == meters[1].request(parts[:number], 5)
    assert meters[0].bill == meters[1].bill
    assert meters[0].bill.cached_tokens > 0


def test_cache_does_not_outlive_its_time() -> None:
    """After a pause longer than the lifetime of the cache, the whole request is written again."""
    for lifetime, cached in ((300.0, 0), (None, 100)):
        meter = Meter(Prices(), lifetime)
        part = [(TERMS, 100)]
        meter.request(part, 0, at=0.0)
        meter.request(part, 0, at=301.0)
        assert meter.bill.cached_tokens == cached


def test_beginnings_are_cached_up_to_marks_and_as_long_as_these_say() -> None:
    """A request reads the longest marked beginning that it shares with the last one, and writes up to its marks."""
    cache = PromptCache(0)
    parts = [("tools", 1000), ("system", 500), ("first", 100), ("second", 10)]
    marks = [Mark(2, 3600.0), Mark(3, 300.0)]
    assert cache.charge(parts, marks, 0.0) == Charge(read=0, written=1600, fresh=10, written_1h=1500)
    assert cache.charge(parts, marks, 300.0) == Charge(read=1600, written=0, fresh=10)
    assert cache.charge(parts, [], 301.0) == Charge(read=0, written=0, fresh=1610)
    assert cache.charge(parts, marks, 1000.0) == Charge(read=1500, written=100, fresh=10)
    changed = [*parts[:2], ("another", 70), ("third", 7)]
    assert cache.charge(changed, [Mark(4, 300.0)], 1001.0) == Charge(read=1500, written=77, fresh=0)
    assert cache.charge(changed, [Mark(4, 300.0)], 9000.0) == Charge(read=0, written=1577, fresh=0)


def test_short_beginnings_and_distant_ones_are_not_read() -> None:
    """A server caches no short beginnings, and looks for entries a limited number of parts before a mark."""
    cache = PromptCache(0, minimum=1024)
    assert cache.charge([("a", 1000)], [Mark(1, None)]) == Charge(fresh=1000)
    parts = [("a", 1100), *((number, 1) for number in range(30))]
    assert cache.charge(parts[:1], [Mark(1, None)]) == Charge(written=1100)
    assert cache.charge(parts[:21], [Mark(21, None)]) == Charge(read=1100, written=20)
    assert cache.charge([parts[0], *parts[10:]], [Mark(22, None)]) == Charge(written=1121)


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
    for name in ("balanced", "economy", "roomy"):
        assert cost[name] < 0.6 * cost["compaction"]
        assert cost[name] < cost["mask"]
    assert cost["balanced"] <= cost["balanced-summaries"]


def test_archival_finds_all_evidence_compaction_loses(recordings: list[Recording], tmp_path: Path) -> None:
    """One search finds archived text; compaction loses at least 30 % of the paths."""
    balanced = replay(recordings, "balanced", TERMS, tmp_path)
    assert {kind: share.ratio for kind, share in balanced.evidence.items()} == dict.fromkeys(balanced.evidence, 1.0)
    assert balanced.evidence["paths"].asked == 50
    compacted = replay(recordings, "compaction", ReplayPricing(items=50, window=30_000), tmp_path)
    assert compacted.evidence["paths"].ratio < 0.7


def test_archives_are_really_made(recordings: list[Recording], tmp_path: Path) -> None:
    """The archives of a replay can be opened and read."""
    outcome = replay(recordings, "economy", TERMS, tmp_path)
    with Archiver(tmp_path / "economy-0000", "orch") as archiver:
        assert len(archiver.archives(merged=True)) == outcome.holders > 10
        last = [record for record in archiver.archives() if record.kind == "turn"][-1]
        found = archiver.read_archive(last.id)
    assert found[0] == next(each.message for each in recordings[0].messages if each.message == found[0])


def test_short_dialogue_costs_no_more(tmp_path: Path) -> None:
    """If archiving cannot save tokens, nothing is archived, and the cost is the same."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(chat(3)))
    found = read_recordings(path)
    none, balanced = (replay(found, name, TERMS, tmp_path) for name in ("none", "balanced"))
    assert balanced.bill == none.bill
    assert balanced.holders == 0


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
    assert reachable_shares(items, [user("see a/b")], lambda _: "", 2) == {"paths": Share(1, 2, 3)}
    assert Share().ratio == 1.0
    assert sample_evenly([str(n) for n in range(10)], 3) == ["0", "3", "6"]


# Report.


def test_report_has_the_promised_keys(session: Path, recordings: list[Recording], tmp_path: Path) -> None:
    """The report has the files, each policy with cost and sizes, and the evidence that the default profile keeps."""
    outcomes = tuple(replay(recordings, name, TERMS, tmp_path) for name in ("none", "balanced"))
    files = [ReplayedFile(str(session), (280,), None, outcomes, ("line 7 is torn",))]
    data = json.loads(json.dumps(report(files, TERMS)))
    assert data["files"] == [str(session)]
    assert data["sessions"][0]["skipped"] == ["line 7 is torn"]
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
    none, balanced = data["policies"]
    assert none["cost_percent"] == 100
    assert balanced["cost_with_recalls"] == balanced["cost_units"]  # the session has no edits
    assert balanced["cost_usd"] == pytest.approx(balanced["cost_units"] * 3 / 1e6, abs=1e-3)
    lines = table(data).splitlines()
    assert lines[0].startswith("POLICY")
    assert [line.split()[0] for line in lines[1:]] == ["none", "balanced"]


def test_report_without_archives_has_no_evidence() -> None:
    """The evidence in the report is None if no policy archives."""
    assert report([ReplayedFile("a", (1,), None, (Outcome("none"),))], TERMS)["evidence"] is None


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
    assert run(home, monkeypatch, "replay", str(session), "--policy", "none,balanced", "--evidence", "5") == 0
    out = capsys.readouterr().out
    assert out.startswith("280 model calls\nRecorded: ")
    assert "System prompt" not in out
    assert "\n\nOF NONE: share of the cost of none; " in out
    assert "The costs of files" not in out
    assert "100.0 %" in out
    assert not home.exists()


def test_replay_command_keeps_archives_in_a_given_folder(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--archive` keeps the archives of a replay, and refuses a folder that is not empty."""
    kept = tmp_path / "kept"
    arguments = ("replay", str(session), "--policy", "balanced", "--json", "--archive", str(kept), "--evidence", "0")
    assert run(tmp_path / "home", monkeypatch, *arguments) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["holders"] > 0
    assert (kept / "balanced-0000" / "archive-000001.jsonl").exists()
    assert run(tmp_path / "home", monkeypatch, *arguments) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_replay_command_reads_folders(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each readable file has a row, and the last row has the totals. Other files and damaged lines are listed."""
    folder = tmp_path / "sessions"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "long.jsonl").write_bytes(session.read_bytes())
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n{\n" for line in pi(3)))
    (folder / "package.json").write_text('{"name": "x"}')
    (folder / "notes.txt").write_text("not read")
    given = ("replay", str(folder), "--policy", "none,mask", "--evidence", "0")
    assert run(tmp_path / "home", monkeypatch, *given) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert [row[:2] for row in rows if row[:1] in (["a.jsonl"], ["b/long.jsonl"], ["total"])] == [
        ["a.jsonl", "12"],
        ["b/long.jsonl", "280"],
        ["total", "292"],
    ]
    assert "package.json is not a readable recording" in err
    assert "notes.txt" not in err
    assert "a.jsonl is damaged:\n  line 2 is not" in err
    assert "and 5 more" in err
    assert run(tmp_path / "home", monkeypatch, *given, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [len(each["skipped"]) for each in data["sessions"]] == [25, 0]
    assert [Path(each["file"]).name for each in data["unread"]] == ["package.json"]
    mask = data["policies"][1]
    assert sum(each["policies"][1]["cost_units"] for each in data["sessions"]) == pytest.approx(
        mask["cost_units"], abs=1
    )


def test_replay_command_counts_each_conversation_of_a_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One readable file has its row. Links to it and questions to holders do not count. Special files are listed."""
    folder = tmp_path / "sessions" / "agent"
    (folder / "holders" / "b0d9").mkdir(parents=True)
    (folder / "archives").mkdir()
    dump_lines(folder / "session.jsonl", pi(3))
    dump_lines(folder / "holders" / "b0d9" / "session.jsonl", pi(3))
    (folder / "archives" / ".written.json").write_text("{}")
    (folder / "twin.jsonl").symlink_to("session.jsonl")
    (folder / "gone.jsonl").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.json")
    given = ("replay", str(folder.parent), str(folder), "--policy", "none,mask", "--evidence", "0")
    assert run(tmp_path / "home", monkeypatch, *given) == 0
    out, err = capsys.readouterr()
    rows = [line.split()[:2] for line in out.splitlines()]
    assert rows[0] == ["12", "model"]
    assert [row for row in rows if row[:1] in (["session.jsonl"], ["total"])] == [
        ["session.jsonl", "12"],
        ["total", "12"],
    ]
    listed = err.splitlines()
    assert listed[0] == "orch: warning: files that are not readable recordings: 2"
    assert any("gone.jsonl" in line and "No such file" in line for line in listed[1:])
    assert any(line.endswith("pipe.json is not a regular file") for line in listed[1:])


def test_replay_command_refuses_folders_without_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what is in the folder."""
    (tmp_path / "notes.txt").write_text("x")
    assert run(tmp_path / "home", monkeypatch, "replay", str(tmp_path)) == 2
    assert "contains no files that end in .jsonl or .json" in capsys.readouterr().err
    (tmp_path / "package.json").write_text("{}")
    assert run(tmp_path / "home", monkeypatch, "replay", str(tmp_path)) == 1
    assert "contains no readable recording among 1 files" in capsys.readouterr().err


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


def test_replay_command_says_which_sizes_are_assumed(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recording without usage has no size of the system prompt. The option that sets the size is named."""
    talk = tmp_path / "talk.json"
    talk.write_text(json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]))
    given = ("replay", "--policy", "none", "--evidence", "0", str(talk))
    assert run(tmp_path / "home", monkeypatch, *given) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 model call\n")
    assert "System prompt and tools: assumed, 12,000 tokens; --system-tokens sets others\n" in out
    assert run(tmp_path / "home", monkeypatch, *given, str(session)) == 0
    out = capsys.readouterr().out
    assert "assumed, 12,000 tokens; 1 conversation; --system-tokens" in out
    assert out.endswith("The costs of files include forced recalls.\n")
    assert run(tmp_path / "home", monkeypatch, *given, "--system-tokens", "100") == 0
    assert "System prompt" not in capsys.readouterr().out


def test_interrupted_replay_prints_no_figures(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says how to replay less."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Meter, "request", interrupted)
    assert run(tmp_path / "home", monkeypatch, "replay", str(session), "--policy", "none") == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("orch: interrupted before all was replayed; ")


def named(model: str, turns: int = 3) -> list[dict[str, Any]]:
    """Return a session of pi whose replies name `model`."""
    lines = pi(turns)
    for line in lines:
        if line.get("message", {}).get("role") == "assistant":
            line["message"] |= {"provider": "anthropic", "model": model} if model else {}
    return lines


def test_replay_command_uses_the_price_of_the_recorded_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each conversation costs what its own model costs, as with --model. The output says which prices were used."""

    def replayed(path: Path, *more: str) -> dict[str, Any]:
        given = ("replay", str(path), "--policy", "none,mask", "--evidence", "0", "--json", *more)
        assert run(tmp_path / "home", monkeypatch, *given) == 0
        return dict(json.loads(capsys.readouterr().out))

    folder = tmp_path / "sessions"
    folder.mkdir()
    models = {"opus": "claude-opus-4-6", "haiku": "claude-haiku-4-5-20251001", "next": "claude-next", "none": ""}
    files = {name: dump_lines(folder / f"{name}.jsonl", named(model)) for name, model in models.items()}
    costs = {name: replayed(file)["policies"][0]["cost_usd"] for name, file in files.items()}
    for name, usd in (("opus", 5), ("haiku", 1), ("next", 3), ("none", 3)):
        at_one = replayed(files[name], "--usd", "1")["policies"][0]["cost_usd"]
        assert costs[name] == pytest.approx(usd * at_one, abs=1e-3), name
    other = replayed(files["haiku"], "--model", "anthropic:claude-opus-4-6")["policies"][0]["cost_usd"]
    assert other == pytest.approx(5 * costs["haiku"], abs=1e-3)

    whole = replayed(folder)
    assert whole["policies"][0]["cost_usd"] == pytest.approx(sum(costs.values()), abs=1e-3)
    assert sorted((each["model"], each["is_assumed"], each["usd_per_million"]) for each in whole["prices"]) == [
        ("", True, 3.0),
        ("anthropic:claude-haiku-4-5-20251001", False, 1.0),
        ("anthropic:claude-next", True, 3.0),
        ("anthropic:claude-opus-4-6", False, 5.0),
    ]
    assert run(tmp_path / "home", monkeypatch, "replay", str(files["next"]), "--policy", "none") == 0
    out = capsys.readouterr().out
    assert "Prices: assumed for anthropic:claude-next, $3 per million input tokens; --model sets others\n" in out
    assert run(tmp_path / "home", monkeypatch, "replay", str(folder), "--policy", "none") == 0
    out = capsys.readouterr().out
    assert "Prices: anthropic:claude-opus-4-6, $5 per million input tokens; 1 conversation\n" in out
    assert run(tmp_path / "home", monkeypatch, "replay", str(folder), "--model", "anthropic:claude-opus-4-6") == 0
    assert "Prices: anthropic:claude-opus-4-6, $5 per million input tokens\n\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("missing.jsonl",), 2, "missing.jsonl"),
        (("SESSION", "--model", "anthropic:claude-next"), 2, "is unknown: choose one"),
        (("SESSION", "--model", "acme:large"), 2, "unknown provider 'acme'"),
        (("SESSION", "--model", "claude-opus-4-5"), 2, "did you mean anthropic:claude-opus-4-5?"),
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
