"""The behavior that the tests of the seed require, tested in two message formats with the `seed` profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from message_shapes import SHAPES, Shape
from orch.api.archiver import Archiver
from orch.archival.adapters import format_named
from orch.archival.plan.triggers import TurnFacts, evaluate_trigger, facts_of
from orch.archival.summary import Summary, parse, request_summary
from orch.config.archival_profiles import archival_rules
from orch_protocol.agent.config import ArchivalConfig, SummaryConfig, TriggerConfig
from orch_protocol.core.messages import Message, StopReason, user
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_worker.conversation.rendering import turn_pieces
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import calls_of, first_line, is_unfinished

TALK = ArchivalConfig(profile="seed", trigger=TriggerConfig(token_threshold=100))


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each message format in turn."""
    given: Shape = request.param
    return given


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def archiver(folder: Path, shape: Shape) -> Iterator[Archiver]:
    """An archiver that archives every turn of at least 100 tokens."""
    with Archiver(folder, shape.name, config=TALK) as made:
        yield made


def read(shape: Shape, *messages: dict[str, Any]) -> list[Message]:
    """Return `messages` in the internal format."""
    return [format_named(shape.name).read(message) for message in messages]


def rendered(turn: list[Message]) -> str:
    """Return the turn as one text."""
    return "".join(turn_pieces(turn, 100_000))


def pairs(shape: Shape, count: int) -> list[dict[str, Any]]:
    """Return a turn with `count` calls and their results."""
    messages = [shape.user("Do it")]
    for number in range(count):
        messages += [shape.calls((f"c{number}", "bash", {"command": "ls"})), *shape.results((f"c{number}", "ok"))]
    return messages


def test_settings_have_the_defaults_of_the_seed() -> None:
    """The trigger and summary settings have the names of the seed, and the profile has the defaults of the seed."""
    config = ArchivalConfig(profile="seed")
    assert list(msgspec.to_builtins(config.trigger)) == [
        "on_max_turns",
        "token_threshold",
        "tool_call_threshold",
        "depth_cap",
    ]
    defaults = TriggerConfig(on_max_turns=True, token_threshold=8000, tool_call_threshold=5, depth_cap=3)
    for facts in (TurnFacts(2, 5), TurnFacts(2, 4, 7999), TurnFacts(2, 0, 8000), TurnFacts(2, max_turns=True)):
        for depth in (2, 3):
            at_depth = msgspec.structs.replace(facts, depth=depth)
            assert evaluate_trigger(at_depth, config.trigger) == evaluate_trigger(at_depth, defaults)
    assert archival_rules(config).summary_style == "structured"
    assert (config.summary.model, config.summary.timeout_seconds) == (None, 60.0)


@pytest.mark.parametrize(
    ("calls", "text", "stop", "depth", "trigger", "archived"),
    [
        (0, "done", "max_turns", 0, TriggerConfig(), True),
        (0, "done", "max_turns", 0, TriggerConfig(on_max_turns=False), False),
        (0, "I reached Max turns, I think", None, 0, TriggerConfig(), False),
        (0, "done", "max_turns", 3, TriggerConfig(), False),
        (0, "done", "max_turns", 2, TriggerConfig(), True),
        (0, "done", "max_turns", 0, TriggerConfig(depth_cap=0), False),
        (9, "x" * 32_000, "max_turns", 3, TriggerConfig(), False),
        (0, "done", None, 0, TriggerConfig(tool_call_threshold=0), True),
        (0, "done", None, 0, TriggerConfig(token_threshold=0), True),
        (9, "done", None, 0, TriggerConfig(tool_call_threshold=10**6), False),
        (5, "done", None, 0, TriggerConfig(), True),
        (4, "done", None, 0, TriggerConfig(), False),
        (2, "done", None, 0, TriggerConfig(), False),
        (0, "x" * 1000, None, 0, TriggerConfig(token_threshold=100), True),
        (0, "x" * 1000, None, 0, TriggerConfig(), False),
        (0, "x" * 32_000, None, 0, TriggerConfig(), True),
    ],
)
def test_any_reached_threshold_archives(
    shape: Shape, calls: int, text: str, stop: StopReason | None, depth: int, trigger: TriggerConfig, archived: bool
) -> None:
    """Reaching the limit of calls counts as well. The text of a reply has no effect, and the depth cap prevents
    archiving."""
    turn = read(shape, *pairs(shape, calls), shape.assistant(text))
    assert (
        evaluate_trigger(
            facts_of(turn, TokenEstimator().messages(turn), stop_reason=stop, depth=depth), trigger
        ).archive
        is archived
    )


def test_threshold_itself_counts() -> None:
    """A number of tokens or calls equal to the threshold is enough."""
    trigger = TriggerConfig(token_threshold=100, tool_call_threshold=5)
    verdicts = [
        evaluate_trigger(TurnFacts(2, calls, tokens), trigger).archive for calls, tokens in ((0, 100), (5, 0), (4, 99))
    ]
    assert verdicts == [True, True, False]


def test_unanswered_calls_count(shape: Shape) -> None:
    """A call without a result counts as a call."""
    turn = read(shape, shape.user("go"), *(shape.calls((f"c{n}", "bash", {})) for n in range(5)))
    facts = facts_of(turn, TokenEstimator().messages(turn))
    assert (facts.tool_calls, facts.unfinished) == (5, True)


def test_empty_turn_is_not_archived() -> None:
    """The turn is not archived even if it reached its limit of calls."""
    assert not evaluate_trigger(facts_of([], 0, stop_reason="max_turns"), TriggerConfig()).archive


def test_calls_are_counted(shape: Shape) -> None:
    """Messages without calls have zero calls, and one message may have several."""
    assert calls_of([]) == []
    assert calls_of(read(shape, *pairs(shape, 0))) == []
    assert calls_of(read(shape, shape.user("hi"), shape.assistant("hello"))) == []
    assert len(calls_of(read(shape, *pairs(shape, 3)))) == 3
    assert len(calls_of(read(shape, shape.calls(("a", "x", {}), ("b", "y", {}))))) == 2


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("abcdefgh", 2), ("abcde", 2)])
def test_four_characters_count_as_a_token(shape: Shape, text: str, tokens: int) -> None:
    """A remainder counts as a whole token."""
    assert TokenEstimator().messages(read(shape, shape.user(text))) == tokens


def test_arguments_and_results_count_towards_the_size(shape: Shape) -> None:
    """The input of calls and the text of results count like other text."""
    with_call = read(shape, shape.calls(("c", "t", {"q": "x" * 400})), *shape.results(("c", "y" * 400)))
    assert TokenEstimator().messages(with_call) >= 200


def test_results_of_several_parts_count_like_one_text() -> None:
    """A result with a list of parts has the same size as a result with one text."""
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "y" * 400}]}
    message = format_named("anthropic").read({"role": "user", "content": [block]})
    assert TokenEstimator().messages([message]) == 100


def test_turn_ending_in_a_call_is_unfinished(shape: Shape) -> None:
    """A turn is finished if it ends with a result or with a text of the model."""
    ending = shape.calls(("c", "bash", {}))
    assert is_unfinished(read(shape, shape.user("go"), ending))
    assert not is_unfinished(read(shape, shape.user("go"), ending, *shape.results(("c", "ok"))))
    assert not is_unfinished(read(shape, shape.user("go"), shape.assistant("done")))


def test_only_the_last_calls_make_a_turn_unfinished(shape: Shape) -> None:
    """An earlier call without a result matters only if a text of the model follows."""
    lost, found = shape.calls(("lost", "bash", {})), shape.calls(("found", "bash", {}))
    ending = [shape.user("go"), lost, found, *shape.results(("found", "ok"))]
    assert not is_unfinished(read(shape, *ending))
    assert is_unfinished(read(shape, *ending, shape.assistant("done")))


def test_failed_or_cancelled_turn_stays_until_the_next_prompt(shape: Shape, archiver: Archiver) -> None:
    """After an error, cancellation, timeout or budget stop, the turn stays so that it can continue."""
    turn = [shape.user("go"), shape.assistant("x" * 1000)]
    for reason in ("error", "cancelled", "timeout", "budget"):
        assert archiver.fold(turn, stop_reason=reason) == turn
    assert len(archiver.fold([*turn, shape.user("and now?")])) == 3
    assert archiver.folded


def test_unfinished_turn_is_not_archived(shape: Shape, archiver: Archiver) -> None:
    """A turn of any size stays if its last call has no result."""
    messages = [*pairs(shape, 6), shape.calls(("late", "bash", {"command": "x" * 1000}))]
    assert archiver.fold(messages) == messages


def test_rendered_turn_has_a_heading_per_role(shape: Shape) -> None:
    """The text has a heading for each role, and a marker for each call and each result."""
    assert turn_pieces([], 1000) == []
    assert rendered(read(shape, shape.user("hi"), shape.assistant("hello"))) == "## user\nhi\n\n## assistant\nhello"
    text = rendered(read(shape, *pairs(shape, 1)))
    assert '[tool_use: bash({"command": "ls"})]\n[tool_result: ok]' in text
    assert rendered(read(shape, shape.calls(("c", "bash", {})))).endswith("[tool_result: (pending)]")


def test_empty_message_is_not_rendered(shape: Shape) -> None:
    """A message without text and calls has no heading."""
    turn = read(shape, shape.user("hi"), shape.assistant(" "), shape.assistant("hello"))
    assert rendered(turn) == "## user\nhi\n\n## assistant\nhello"


def test_text_parts_are_joined_by_line_breaks(shape: Shape) -> None:
    """The joined text has one heading."""
    message = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    assert rendered(read(shape, message)) == "## user\none\ntwo"


def test_result_is_rendered_once_at_its_call(shape: Shape) -> None:
    """A result is next to its call and appears only once."""
    turn = read(shape, shape.calls(("c", "bash", {}), text="look"), *shape.results(("c", "only-once")))
    assert rendered(turn).count("only-once") == 1
    assert rendered(turn).startswith("## assistant\nlook\n[tool_use: bash({})]")


def test_structured_answer_is_validated() -> None:
    """The error message for an invalid answer does not contain the answer."""
    answer = {"outcome": "fixed", "key_findings": ["a"], "open_questions": []}
    assert parse(json.dumps(answer), "structured") == Summary("fixed", ("a",), ())
    assert parse("all good", "structured") != "all good"
    assert "not the requested JSON object" in str(parse("all good", "structured"))


@pytest.mark.parametrize(
    ("prompt", "line"),
    [("first\nsecond", "first"), ("", "(no prompt)"), (" \n\t ", "(no prompt)"), ("x" * 80, "x" * 80)],
)
def test_task_is_the_first_line_of_the_prompt(prompt: str, line: str) -> None:
    """The task of a prompt without text is a placeholder."""
    assert first_line(prompt) == line


def test_long_first_line_is_truncated() -> None:
    """The limit is 80 characters including the dots."""
    assert first_line("y" * 200) == "y" * 77 + "..."


def test_archive_file_has_header_messages_and_record(shape: Shape, archiver: Archiver, folder: Path) -> None:
    """The record with the archive's metadata is the last line."""
    archiver.fold([*pairs(shape, 5), shape.assistant("done")])
    lines = [json.loads(line) for line in (folder / "archive-000001.jsonl").read_text().splitlines()]
    assert (lines[0]["type"], bool(lines[0]["id"])) == ("session", True)
    assert {line["message"]["role"] for line in lines if line["type"] == "message"} == {"user", "assistant"}
    assert len(lines) == 1 + 12 + 1
    assert lines[-1]["customType"] == "archive"
    assert lines[-1]["data"]["record"] == archiver.archives()[0].record


def test_existing_file_is_continued(shape: Shape, folder: Path) -> None:
    """A later archiver of the folder appends to the file."""
    for letter in "ab":
        with Archiver(folder, shape.name, config=TALK) as archiver:
            archiver.fold([shape.user("Explain"), shape.assistant(letter * 1000)])
    lines = [json.loads(line) for line in (folder / "archive-000001.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines] == ["session", *["message", "message", "custom"] * 2]
    assert oct(folder.stat().st_mode)[-3:] == "700"


def test_archived_messages_can_seed_an_agent(shape: Shape, archiver: Archiver) -> None:
    """The messages of an archive begin with the prompt."""
    archiver.fold([shape.user("Explain"), shape.assistant("y" * 1000)])
    history = archiver.read_archive(archiver.archives()[0].id)
    assert [message["role"] for message in history] == ["user", "assistant"]


def test_calls_are_listed_with_results(shape: Shape) -> None:
    """A call without a result is not completed."""
    turn = read(shape, shape.calls(("c1", "bash", {"command": "ls"})), *shape.results(("c1", "a.py")))
    call = calls_of(turn)[0]
    assert (call.id, call.name, call.input, call.result, call.completed) == (
        "c1",
        "bash",
        {"command": "ls"},
        "a.py",
        True,
    )
    pending = calls_of(turn[:1])[0]
    assert (pending.result, pending.completed) == (None, False)


def test_all_formats_give_the_same_calls() -> None:
    """The same conversation has the same calls in each format."""
    one, other = (calls_of(read(shape, *pairs(shape, 3), shape.calls(("late", "bash", {"n": 1})))) for shape in SHAPES)
    assert one == other
    assert len(one) == 4


@pytest.mark.parametrize("style", ["structured", "paragraph"])
def test_summary_styles_give_one_text(shape: Shape, style: Any) -> None:
    """The request contains the configured model and the turn."""
    asked: list[SummaryRequest] = []

    def model(request: SummaryRequest) -> str:
        asked.append(request)
        return json.dumps({"outcome": "The pump works."}) if style == "structured" else "The pump works."

    text = request_summary(read(shape, shape.user("Fix the pump"), shape.assistant("done")), style, "small", model)
    assert text is not None
    assert "The pump works." in text
    assert "Fix the pump" in asked[0].prompt
    assert asked[0].model == "small"


def test_archived_turn_becomes_prompt_and_record(shape: Shape, archiver: Archiver) -> None:
    """The first message of the fold is the prompt, and the second is the record with the archive's id and the
    answer."""
    turn = [
        shape.user("Explain the code"),
        shape.calls(("c", "read_file", {"path": "a.py"})),
        *shape.results(("c", "print(1)\n" * 100)),
        shape.assistant("It prints."),
    ]
    folded = archiver.fold(turn)
    assert [message["role"] for message in folded] == ["user", "assistant"]
    assert folded[0] is turn[0]
    id = archiver.archives()[0].id
    assert shape.text(folded[1]).startswith(f"[archived turn]\nsubagent_id: {id}\n\n")
    assert shape.text(folded[1]).endswith("Final answer:\nIt prints.")


def test_huge_prompt_stays_whole_under_the_seed_profile(shape: Shape, archiver: Archiver) -> None:
    """A prompt of any size stays unchanged."""
    turn = [shape.user("chapter after chapter, " * 4000), shape.assistant("Read.")]
    assert archiver.fold(turn)[0] is turn[0]
    assert len(archiver.folded) == 1


def test_record_is_not_archived_again(shape: Shape, archiver: Archiver) -> None:
    """A record of any size stays. Only new turns are archived."""
    live = archiver.fold([shape.user("a" * 600), shape.assistant("b" * 6000)])
    assert archiver.fold(live) == live
    after = archiver.fold([*live, shape.user("more"), shape.assistant("c" * 1000)])
    assert after[:2] == live
    assert len(archiver.archives()) == 2


def test_existing_archives_work_with_archival_off(shape: Shape, folder: Path) -> None:
    """Existing archives can be searched, read and unfolded. No new archives are created."""
    turn = [shape.user("Explain"), shape.assistant("needle " * 200)]
    with Archiver(folder, shape.name, config=TALK) as archiver:
        live = [*archiver.fold(turn), shape.user("more"), shape.assistant("z" * 1000)]
    with Archiver(folder, shape.name, config=ArchivalConfig(profile="seed", turns=False)) as archiver:
        assert archiver.fold(live) == live
        id = archiver.archives()[0].id
        assert archiver.search("needle")[0].id == id
        assert archiver.read_archive(id) == turn
        assert archiver.unfold(live) == [*turn, *live[2:]]


def test_receipt_stays_without_a_usable_summary(shape: Shape, folder: Path) -> None:
    """The receipt stays without a model, with a failing model and with an invalid answer."""

    def broken(_: SummaryRequest) -> str:
        raise RuntimeError("no model")

    turn = [*pairs(shape, 5), shape.assistant("done")]
    for number, model in enumerate((None, broken, lambda _: "nonsense", lambda _: "")):
        with Archiver(folder / str(number), shape.name, "seed", model) as archiver:
            record = archiver.fold(turn)[1]
            assert "Tools: bash x5" in shape.text(record)
            assert "pending" not in shape.text(record).lower()


def test_summary_replaces_the_receipt(shape: Shape, folder: Path) -> None:
    """The summary is in the record at once and after a restart."""
    turn = [*pairs(shape, 5), shape.assistant("done")]
    config = ArchivalConfig(profile="seed", summary=SummaryConfig(style="paragraph"))
    with Archiver(folder, shape.name, config=config, summarize=lambda _: "Five files listed.") as archiver:
        first = archiver.fold(turn)
        assert "Five files listed." in shape.text(first[1])
    with Archiver(folder, shape.name, config=config) as archiver:
        assert archiver.fold(turn) == first
        assert archiver.archives()[0].summarized


def test_turns_with_the_same_first_line_are_separate_archives(shape: Shape, archiver: Archiver) -> None:
    """The archives have the same task and different ids."""
    turns = [[shape.user("Go up"), shape.assistant(letter * 1000)] for letter in "ab"]
    archiver.fold([*turns[0], *turns[1]])
    first, second = archiver.archives()
    assert first.task == second.task == "Go up"
    assert first.id != second.id


def test_conversation_without_a_prompt_gets_a_placeholder(shape: Shape, archiver: Archiver) -> None:
    """The placeholder precedes the record. Unfolding returns the original messages."""
    messages = [shape.assistant("z" * 1000), shape.user("and now?")]
    folded = archiver.fold(messages)
    assert [message["role"] for message in folded] == ["user", "assistant", "user"]
    assert shape.text(folded[0]) == "(no prompt)"
    assert archiver.unfold(folded) == messages


def test_seed_profile_has_no_phases_and_no_merging(shape: Shape, archiver: Archiver) -> None:
    """A running turn is not archived in phases, and records do not merge."""
    running = pairs(shape, 30)
    assert archiver.fold(running) == running
    many = [message for n in range(40) for message in (shape.user(f"q{n}"), shape.assistant(f"{n}" * 1000))]
    assert len(archiver.fold(many)) == 80


def test_internal_messages_need_no_format(folder: Path) -> None:
    """The format `orch` folds and unfolds messages of the internal type."""
    with Archiver(folder, "orch", config=TALK) as archiver:
        turn = [user("q"), Message("assistant", user("x" * 1000).content)]
        folded = archiver.fold(turn)
        assert folded[0] is turn[0]
        assert archiver.unfold(folded) == turn
