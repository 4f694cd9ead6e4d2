"""What the seed's own tests hold, held here in both message shapes under its profile."""

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
from orch_protocol.agent.config import ArchivalConfig, SummaryConfig, TriggerConfig
from orch_protocol.core.messages import Message, StopReason, user
from orch_protocol.services.archiving import SummaryRequest
from orch_worker.conversation.rendering import render_turn
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import calls_of, first_line, is_unfinished

TALK = ArchivalConfig(profile="seed", trigger=TriggerConfig(token_threshold=100))


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each message shape in turn."""
    given: Shape = request.param
    return given


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for archives."""
    return tmp_path / "archive"


@pytest.fixture
def archiver(folder: Path, shape: Shape) -> Iterator[Archiver]:
    """An archiver that archives every turn of 100 tokens."""
    with Archiver(folder, shape.name, config=TALK) as made:
        yield made


def read(shape: Shape, *messages: dict[str, Any]) -> list[Message]:
    """Return `messages` as ours."""
    return [format_named(shape.name).read(message) for message in messages]


def pairs(shape: Shape, count: int) -> list[dict[str, Any]]:
    """Return a turn with `count` calls, each answered."""
    messages = [shape.user("Do it")]
    for number in range(count):
        messages += [shape.calls((f"c{number}", "bash", {"command": "ls"})), *shape.results((f"c{number}", "ok"))]
    return messages


def test_config_defaults() -> None:
    """The seed's names and defaults are there, and nothing is archived before somebody asks for it."""
    config = ArchivalConfig(profile="seed")
    assert msgspec.to_builtins(config.trigger) == {
        "on_max_turns": True,
        "token_threshold": 8000,
        "tool_call_threshold": 5,
        "depth_cap": 3,
    }
    assert msgspec.to_builtins(config.summary) == {"style": "structured", "model": None, "timeout_seconds": 60.0}


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
def test_triggers(
    shape: Shape, calls: int, text: str, stop: StopReason | None, depth: int, trigger: TriggerConfig, archived: bool
) -> None:
    """Any threshold that is reached archives, a limit typed as such too; words in a reply do not; the cap beats all."""
    turn = read(shape, *pairs(shape, calls), shape.assistant(text))
    assert (
        evaluate_trigger(facts_of(turn, TokenEstimator(), stop_reason=stop, depth=depth), trigger).archive is archived
    )


def test_threshold_itself_counts() -> None:
    """Exactly as many tokens, or calls, as the threshold are enough; one less is not."""
    trigger = TriggerConfig(token_threshold=100, tool_call_threshold=5)
    verdicts = [
        evaluate_trigger(TurnFacts(2, calls, tokens), trigger).archive for calls, tokens in ((0, 100), (5, 0), (4, 99))
    ]
    assert verdicts == [True, True, False]


def test_calls_count_as_they_are_asked_for(shape: Shape) -> None:
    """A call that was never answered counts like any other."""
    turn = read(shape, shape.user("go"), *(shape.calls((f"c{n}", "bash", {})) for n in range(5)))
    facts = facts_of(turn, TokenEstimator())
    assert (facts.tool_calls, facts.unfinished) == (5, True)


def test_nothing_is_never_archived() -> None:
    """An empty turn is left alone, even at the limit."""
    assert not evaluate_trigger(facts_of([], TokenEstimator(), stop_reason="max_turns"), TriggerConfig()).archive


def test_calls_are_counted(shape: Shape) -> None:
    """No calls in nothing and in talk, three in three pairs, two in one message."""
    assert calls_of([]) == []
    assert calls_of(read(shape, *pairs(shape, 0))) == []
    assert calls_of(read(shape, shape.user("hi"), shape.assistant("hello"))) == []
    assert len(calls_of(read(shape, *pairs(shape, 3)))) == 3
    assert len(calls_of(read(shape, shape.calls(("a", "x", {}), ("b", "y", {}))))) == 2


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("abcdefgh", 2), ("abcde", 2)])
def test_tokens_are_estimated(shape: Shape, text: str, tokens: int) -> None:
    """Four characters are a token, and what is left over is one."""
    assert TokenEstimator().messages(read(shape, shape.user(text))) == tokens


def test_every_block_is_estimated(shape: Shape) -> None:
    """Arguments of calls and the text of results count like any other text."""
    with_call = read(shape, shape.calls(("c", "t", {"q": "x" * 400})), *shape.results(("c", "y" * 400)))
    assert TokenEstimator().messages(with_call) >= 200


def test_results_in_parts_are_estimated() -> None:
    """A result that comes as a list of parts weighs what one of text weighs."""
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "y" * 400}]}
    message = format_named("anthropic").read({"role": "user", "content": [block]})
    assert TokenEstimator().messages([message]) == 100


def test_unfinished_turns_are_seen(shape: Shape) -> None:
    """A turn that ends in a call is unfinished; with a result, or with plain words, it is not."""
    ending = shape.calls(("c", "bash", {}))
    assert is_unfinished(read(shape, shape.user("go"), ending))
    assert not is_unfinished(read(shape, shape.user("go"), ending, *shape.results(("c", "ok"))))
    assert not is_unfinished(read(shape, shape.user("go"), shape.assistant("done")))


def test_only_the_end_of_a_turn_is_unfinished(shape: Shape) -> None:
    """An earlier call without result does not matter where results are last; where the model has spoken it does."""
    lost, found = shape.calls(("lost", "bash", {})), shape.calls(("found", "bash", {}))
    ending = [shape.user("go"), lost, found, *shape.results(("found", "ok"))]
    assert not is_unfinished(read(shape, *ending))
    assert is_unfinished(read(shape, *ending, shape.assistant("done")))


def test_turn_that_broke_off_is_left_alone(shape: Shape, archiver: Archiver) -> None:
    """After an error or a cancel the turn stays, so that it can go on; once something else is asked it may leave."""
    turn = [shape.user("go"), shape.assistant("x" * 1000)]
    for reason in ("error", "cancelled", "timeout", "budget"):
        assert archiver.fold(turn, stop_reason=reason) == turn
    assert len(archiver.fold([*turn, shape.user("and now?")])) == 3
    assert archiver.folded


def test_unfinished_turns_are_left_alone(shape: Shape, archiver: Archiver) -> None:
    """A turn whose last call has no result stays where it is, however large."""
    messages = [*pairs(shape, 6), shape.calls(("late", "bash", {"command": "x" * 1000}))]
    assert archiver.fold(messages) == messages


def test_turn_is_rendered(shape: Shape) -> None:
    """A heading for each role, and a mark at each call and each result."""
    assert render_turn([]) == ""
    assert render_turn(read(shape, shape.user("hi"), shape.assistant("hello"))) == "## user\nhi\n\n## assistant\nhello"
    text = render_turn(read(shape, *pairs(shape, 1)))
    assert '[tool_use: bash({"command": "ls"})]\n[tool_result: ok]' in text
    assert render_turn(read(shape, shape.calls(("c", "bash", {})))).endswith("[tool_result: (pending)]")


def test_message_that_says_nothing_is_not_rendered(shape: Shape) -> None:
    """A message without words or calls has no heading."""
    turn = read(shape, shape.user("hi"), shape.assistant(" "), shape.assistant("hello"))
    assert render_turn(turn) == "## user\nhi\n\n## assistant\nhello"


def test_parts_of_a_message_are_lines(shape: Shape) -> None:
    """Text in several parts is joined by line breaks."""
    message = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    assert render_turn(read(shape, message)) == "## user\none\ntwo"


def test_result_is_rendered_once(shape: Shape) -> None:
    """A result stands at its call and nowhere else; text of several parts is joined by lines."""
    turn = read(shape, shape.calls(("c", "bash", {}), text="look"), *shape.results(("c", "only-once")))
    assert render_turn(turn).count("only-once") == 1
    assert render_turn(turn).startswith("## assistant\nlook\n[tool_use: bash({})]")


def test_structured_answer_is_checked() -> None:
    """What fits the schema is taken as it is, what does not is named as such and never shown to the agent."""
    answer = {"outcome": "fixed", "key_findings": ["a"], "open_questions": []}
    assert parse(json.dumps(answer), "structured") == Summary("fixed", ("a",), ())
    assert parse("all good", "structured") != "all good"
    assert "not the JSON object" in str(parse("all good", "structured"))


@pytest.mark.parametrize(
    ("prompt", "line"),
    [("first\nsecond", "first"), ("", "(no prompt)"), (" \n\t ", "(no prompt)"), ("x" * 80, "x" * 80)],
)
def test_first_line(prompt: str, line: str) -> None:
    """A prompt is named by its first line."""
    assert first_line(prompt) == line


def test_long_first_line_is_cut() -> None:
    """A long first line ends in dots, within 80 characters."""
    assert first_line("y" * 200) == "y" * 77 + "..."


def test_archive_is_persisted(shape: Shape, archiver: Archiver, folder: Path) -> None:
    """The file has a header, every message, and last what is known of the archive with its record."""
    archiver.fold([*pairs(shape, 5), shape.assistant("done")])
    lines = [json.loads(line) for line in (folder / "archive-000001.jsonl").read_text().splitlines()]
    assert (lines[0]["type"], bool(lines[0]["id"])) == ("session", True)
    assert {line["message"]["role"] for line in lines if line["type"] == "message"} == {"user", "assistant"}
    assert len(lines) == 1 + 12 + 1
    assert lines[-1]["customType"] == "archive"
    assert lines[-1]["data"]["record"] == archiver.archives()[0].record


def test_file_is_begun_once(shape: Shape, folder: Path) -> None:
    """Whoever opens the folder later goes on behind what is there."""
    for letter in "ab":
        with Archiver(folder, shape.name, config=TALK) as archiver:
            archiver.fold([shape.user("Explain"), shape.assistant(letter * 1000)])
    lines = [json.loads(line) for line in (folder / "archive-000001.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines] == ["session", *["message", "message", "custom"] * 2]
    assert oct(folder.stat().st_mode)[-3:] == "700"


def test_archive_can_seed_an_agent(shape: Shape, archiver: Archiver) -> None:
    """What was archived reads like a conversation: it begins with the prompt."""
    archiver.fold([shape.user("Explain"), shape.assistant("y" * 1000)])
    history = archiver.read_archive(archiver.archives()[0].id)
    assert [message["role"] for message in history] == ["user", "assistant"]


def test_calls_have_their_results(shape: Shape) -> None:
    """A call is told with id, tool, arguments and result; without one it is not completed."""
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


def test_shapes_agree_on_the_calls() -> None:
    """The same conversation has the same calls in each shape."""
    one, other = (calls_of(read(shape, *pairs(shape, 3), shape.calls(("late", "bash", {"n": 1})))) for shape in SHAPES)
    assert one == other
    assert len(one) == 4


@pytest.mark.parametrize("style", ["structured", "paragraph"])
def test_turn_is_summarised(shape: Shape, style: Any) -> None:
    """Either style gives one text, about what the turn was about; the asked model is handed on."""
    asked: list[SummaryRequest] = []

    def model(request: SummaryRequest) -> str:
        asked.append(request)
        return json.dumps({"outcome": "The pump works."}) if style == "structured" else "The pump works."

    text = request_summary(read(shape, shape.user("Fix the pump"), shape.assistant("done")), style, "small", model)
    assert text is not None
    assert "The pump works." in text
    assert "Fix the pump" in asked[0].prompt
    assert asked[0].model == "small"


def test_turn_collapses(shape: Shape, archiver: Archiver) -> None:
    """Four messages become two: the prompt, and a record that says where the rest is."""
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


def test_huge_prompt_stays_whole(shape: Shape, archiver: Archiver) -> None:
    """Under this profile the prompt stays word for word, however long."""
    turn = [shape.user("chapter after chapter, " * 4000), shape.assistant("Read.")]
    assert archiver.fold(turn)[0] is turn[0]
    assert len(archiver.folded) == 1


def test_record_is_not_archived_again(shape: Shape, archiver: Archiver) -> None:
    """What was archived is no turn any more, however large its record; only what is new leaves."""
    live = archiver.fold([shape.user("a" * 600), shape.assistant("b" * 6000)])
    assert archiver.fold(live) == live
    after = archiver.fold([*live, shape.user("more"), shape.assistant("c" * 1000)])
    assert after[:2] == live
    assert len(archiver.archives()) == 2


def test_old_records_answer_when_it_is_switched_off(shape: Shape, folder: Path) -> None:
    """With archival off nothing new leaves; what left before is still found, read and put back."""
    turn = [shape.user("Explain"), shape.assistant("needle " * 200)]
    with Archiver(folder, shape.name, config=TALK) as archiver:
        live = [*archiver.fold(turn), shape.user("more"), shape.assistant("z" * 1000)]
    with Archiver(folder, shape.name, config=ArchivalConfig(profile="seed", turns=False)) as archiver:
        assert archiver.fold(live) == live
        id = archiver.archives()[0].id
        assert archiver.search("needle")[0].id == id
        assert archiver.read_archive(id) == turn
        assert archiver.unfold(live) == [*turn, *live[2:]]


def test_record_never_is_a_placeholder(shape: Shape, folder: Path) -> None:
    """With no model, a model that fails, or one that answers nonsense, what stays is what was done."""

    def broken(_: SummaryRequest) -> str:
        raise RuntimeError("no model")

    turn = [*pairs(shape, 5), shape.assistant("done")]
    for number, model in enumerate((None, broken, lambda _: "nonsense", lambda _: "")):
        with Archiver(folder / str(number), shape.name, "seed", model) as archiver:
            record = archiver.fold(turn)[1]
            assert "Commands: ls" in shape.text(record)
            assert "Tools: bash x5" in shape.text(record)
            assert "pending" not in shape.text(record).lower()


def test_summary_takes_the_place_of_the_receipt(shape: Shape, folder: Path) -> None:
    """A model's answer is in the conversation at once, and still there after a restart."""
    turn = [*pairs(shape, 5), shape.assistant("done")]
    config = ArchivalConfig(profile="seed", summary=SummaryConfig(style="paragraph"))
    with Archiver(folder, shape.name, config=config, summarize=lambda _: "Five files listed.") as archiver:
        first = archiver.fold(turn)
        assert "Five files listed." in shape.text(first[1])
    with Archiver(folder, shape.name, config=config) as archiver:
        assert archiver.fold(turn) == first
        assert archiver.archives()[0].summarised


def test_same_first_line_twice(shape: Shape, archiver: Archiver) -> None:
    """Two turns that begin alike are two archives, told apart by their ids."""
    turns = [[shape.user("Go on"), shape.assistant(letter * 1000)] for letter in "ab"]
    archiver.fold([*turns[0], *turns[1]])
    first, second = archiver.archives()
    assert first.task == second.task == "Go on"
    assert first.id != second.id


def test_conversation_without_a_prompt(shape: Shape, archiver: Archiver) -> None:
    """A conversation that begins with an answer gets a prompt that says so, and comes back as it was."""
    messages = [shape.assistant("z" * 1000), shape.user("and now?")]
    folded = archiver.fold(messages)
    assert [message["role"] for message in folded] == ["user", "assistant", "user"]
    assert shape.text(folded[0]) == "(no prompt)"
    assert archiver.unfold(folded) == messages


def test_seed_profile_does_nothing_else(shape: Shape, archiver: Archiver) -> None:
    """Under the seed's profile a running turn is never cut, and stubs never merge."""
    running = pairs(shape, 30)
    assert archiver.fold(running) == running
    many = [message for n in range(40) for message in (shape.user(f"q{n}"), shape.assistant(f"{n}" * 1000))]
    assert len(archiver.fold(many)) == 80


def test_our_own_messages_need_no_shape(folder: Path) -> None:
    """The same works on our messages as they are."""
    with Archiver(folder, "orch", config=TALK) as archiver:
        turn = [user("q"), Message("assistant", user("x" * 1000).content)]
        folded = archiver.fold(turn)
        assert folded[0] is turn[0]
        assert archiver.unfold(folded) == turn
