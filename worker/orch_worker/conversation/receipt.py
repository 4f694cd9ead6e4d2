"""Receipts: what a range of messages did, computed from calls, results and texts without a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, text_of

from .call_facts import CallFacts, Job, facts_of_call
from .framing import question_in, without_markers
from .records.effects import job_over
from .records.facts import (
    EDIT_KEY,
    ChangedFile,
    CommandOutcome,
    Commit,
    Constant,
    Deviation,
    Effect,
    Failure,
    Place,
    Request,
    SeenFile,
    Specification,
    UserWords,
    moved,
)
from .records.files import absolute_paths, current_files
from .records.outcomes import check_key, is_named
from .records.prose import cut_at_sentence, figures_in, is_request, last_sentences, request_in
from .stubs import holders_in
from .subagent_calls import AskedAgent, asked_in, latest_states
from .turns import calls_of, is_answered, is_prompt

__all__ = ["Receipt", "merge", "receipt_of", "with_places"]

MAX_ITEMS: Final = 40
MAX_FILES: Final = 1_000
MAX_REQUESTS: Final = 400
REQUEST_CHARS: Final = 160
ANSWER_CHARS: Final = 120
WORDS_CHARS: Final = 300
SENTENCE_CHARS: Final = 220
MAX_FIGURES: Final = 12
SHORT_HASH: Final = 7


class Receipt(Struct, frozen=True, omit_defaults=True):
    """What a range of messages did. Each list contains distinct items, in order.

    `files` contains at most 1,000 changed files, `requests` at most 400 requests, and other lists at most 40 items.
    `more` is the number of items that were left out. `said` contains the agent's last sentences, if the range does not
    end with an answer.
    """

    commands: tuple[CommandOutcome, ...] = ()
    tools: dict[str, int] = {}
    more: int = 0
    asked: tuple[AskedAgent, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    seen: tuple[SeenFile, ...] = ()
    failures: tuple[Failure, ...] = ()
    commits: tuple[Commit, ...] = ()
    lasting: tuple[Effect, ...] = ()
    requests: tuple[Request, ...] = ()
    words: tuple[UserWords, ...] = ()
    specifications: tuple[Specification, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    figures: tuple[str, ...] = ()
    constants: tuple[Constant, ...] = ()
    said: str = ""


def receipt_of(messages: Sequence[Message], entries: Sequence[int] = ()) -> Receipt:
    """Return the receipt of `messages`.

    `entries` contains the number of each message as an entry of its archive. Without these numbers, the receipt has no
    places. Malformed input never raises an error.
    """
    numbers = list(entries) or [0] * len(messages)
    results = _result_positions(messages)
    calls = calls_of(messages)
    found: list[CallFacts] = []
    documents: dict[str, str] = {}
    position = iter(calls)
    prose = ""
    tools: dict[str, int] = {}
    words: list[UserWords] = []
    requests: list[Request] = []
    figures: list[str] = []
    ended: list[Effect] = []
    last_text = ""
    jobs: dict[str, Job] = {}
    for index, message in enumerate(messages):
        if message.role == "user":
            text = _own_words(message)
            ended += [Effect(job.key, "", over=True) for id, job in jobs.items() if id in text and job_over(text)]
            if not is_prompt(message) and request_in(text):
                words.append(UserWords(cut_at_sentence(request_in(text), WORDS_CHARS), place=Place(numbers[index])))
            elif is_prompt(message) and is_request(text):
                requests.append(Request(cut_at_sentence(" ".join(request_in(text).split()), REQUEST_CHARS)))
            continue
        if message.role != "assistant" or holders_in(message):
            continue
        for block in message.content:
            if isinstance(block, Text) and block.text.strip():
                prose = last_text = block.text
                figures += figures_in(block.text)
            elif isinstance(block, ToolUse):
                call = next(position)
                tools[call.name] = tools.get(call.name, 0) + 1
                result_index = results.get(call.id)
                places = Place(numbers[index]), Place(numbers[result_index] if result_index is not None else 0)
                facts = facts_of_call(call, prose, *places, documents=documents, jobs=jobs)
                found.append(facts)
                words += facts.words
                if facts.files:
                    prose = ""
    answered = is_answered(messages) and not holders_in(messages[-1])
    answer = text_of(messages[-1]).strip() if answered else ""
    if requests and answer:
        first = cut_at_sentence(" ".join(answer.split()), ANSWER_CHARS)
        requests[-1] = msgspec.structs.replace(requests[-1], answer=first)
    return _bounded(
        tools=tools,
        asked=asked_in(calls),
        said="" if answer else last_sentences(last_text, 2, SENTENCE_CHARS),
        files=[file for facts in found for file in facts.files],
        seen=[file for facts in found for file in facts.seen],
        commands=_accepted([(facts.commands, facts.commits) for facts in found]),
        failures=_with_resolutions(found),
        commits=[commit for facts in found for commit in facts.commits],
        lasting=[*(effect for facts in found for effect in facts.effects), *ended],
        requests=requests,
        words=words,
        specifications=[each for facts in found for each in facts.specifications],
        deviations=[each for facts in found for each in facts.deviations],
        constants=[each for facts in found for each in facts.constants],
        figures=figures,
    )


def merge(receipts: Sequence[Receipt]) -> Receipt:
    """Return one receipt for several receipts in order. If a list becomes too long, the latest items are kept."""
    tools: dict[str, int] = {}
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    more, said = 0, ""
    steps: list[tuple[Sequence[CommandOutcome], Sequence[Commit]]] = []
    resolved = _resolved_keys(receipts)
    for number, receipt in enumerate(receipts):
        more += receipt.more
        said = receipt.said
        for name, times in receipt.tools.items():
            tools[name] = tools.get(name, 0) + times
        steps.append((receipt.commands, receipt.commits))
        for name in _LISTS:
            lists[name] += getattr(receipt, name)
        failures = (
            msgspec.structs.replace(failure, resolved=failure.resolved or resolved.get(failure.key, -1) > number)
            for failure in receipt.failures
        )
        lists["failures"][len(lists["failures"]) - len(receipt.failures) :] = failures
    lists["commands"] = _accepted(steps)
    asked = latest_states(each for receipt in receipts for each in receipt.asked)
    return _bounded(tools=tools, more=more, asked=asked, said=said, **lists)


def with_places(receipt: Receipt, shift: int, holder: str = "") -> Receipt:
    """Return `receipt` with its places as another archive gives them; see `Place.moved`."""
    lists: dict[str, Any] = {
        name: tuple(moved(fact, shift, holder) for fact in getattr(receipt, name)) for name in _PLACED
    }
    return msgspec.structs.replace(receipt, **lists)


_PLACED: Final = ("files", "commands", "failures", "commits", "words", "specifications", "deviations")
_LISTS: Final = (*_PLACED, "constants", "seen", "lasting", "requests", "figures")


def _own_words(message: Message) -> str:
    """Return the text of a user message without markers, the task of the agent, and records of archives."""
    if holders := holders_in(message):
        content = message.content[: -len(holders)]
        message = Message("user", content)
    return without_markers(question_in(text_of(message)))


def _result_positions(messages: Sequence[Message]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for index, message in enumerate(messages):
        for block in message.content:
            if isinstance(block, ToolResult):
                positions.setdefault(block.tool_use_id, index)
    return positions


def _with_resolutions(found: Sequence[CallFacts]) -> list[Failure]:
    """Return the failures. A failure is resolved if a later call with the same key succeeded."""
    passed: set[str] = set()
    failures: list[Failure] = []
    for facts in reversed(found):
        for failure in reversed(facts.failures):
            failures.append(msgspec.structs.replace(failure, resolved=failure.key in passed))
        passed |= facts.passed
    return failures[::-1]


def _resolved_keys(receipts: Sequence[Receipt]) -> dict[str, int]:
    """Return the calls that succeeded, by key, with the position of the last receipt that shows the success."""
    resolved: dict[str, int] = {}
    for number, receipt in enumerate(receipts):
        for command in receipt.commands:
            if command.verifies and not command.has_failed:
                resolved[check_key(command.line)] = number
        if any(commit.hash for commit in receipt.commits):
            resolved["git commit"] = resolved["git add"] = number
        for file in receipt.files:
            resolved[f"{EDIT_KEY}{file.path}"] = number
    return resolved


def _bounded(
    *, tools: Mapping[str, int], asked: tuple[AskedAgent, ...], said: str, more: int = 0, **lists: list[Any]
) -> Receipt:
    paths = absolute_paths([*(file.path for file in lists["files"]), *(file.path for file in lists["seen"])])
    files = current_files(lists.pop("files"), paths)
    seen = _seen(lists.pop("seen"), files, paths)
    commands = _last_runs(lists.pop("commands"))
    lasting = _alive(lists.pop("lasting"))
    requests = list(dict.fromkeys(lists.pop("requests")))
    figures = list(dict.fromkeys(lists.pop("figures")))[-MAX_FIGURES:]
    named: dict[str, Specification] = {}
    for each in lists.pop("specifications"):
        named.setdefault(each.name, each)
    lists["specifications"] = list(named.values())
    last = {(each.path, each.name): each for each in lists.pop("constants")}
    removed = {file.path for file in files if file.removed}
    lists["constants"] = [each for each in last.values() if paths.get(each.path, each.path) not in removed]
    failures = list({(failure.key, failure.text): failure for failure in lists.pop("failures")}.values())
    kept: dict[str, Any] = {}
    distinct = {name: list(dict.fromkeys(values)) for name, values in lists.items()}
    limits: Iterable[tuple[str, Sequence[Any], int]] = (
        ("files", files, MAX_FILES),
        ("seen", seen, 2 * MAX_ITEMS),
        ("commands", _important_last(commands), MAX_ITEMS),
        ("failures", sorted(failures, key=lambda failure: not failure.resolved), MAX_ITEMS),
        ("lasting", lasting, MAX_ITEMS),
        ("requests", requests, MAX_REQUESTS),
        *((name, values, MAX_ITEMS) for name, values in distinct.items()),
    )
    for name, values, limit in limits:
        more += max(0, len(values) - limit)
        kept[name] = values[-limit:]
    order = {id(command): place for place, command in enumerate(commands)}
    kept["commands"] = sorted(kept["commands"], key=lambda command: order[id(command)])
    listed: dict[str, Any] = {name: tuple(values) for name, values in kept.items()}
    more += max(0, len(asked) - MAX_ITEMS)
    return Receipt(
        tools=dict(sorted(tools.items(), key=lambda item: -item[1])[:MAX_ITEMS]),
        more=more,
        asked=asked[-MAX_ITEMS:],
        said=said,
        figures=tuple(figures),
        **listed,
    )


def _accepted(steps: Iterable[tuple[Sequence[CommandOutcome], Sequence[Commit]]]) -> list[CommandOutcome]:
    """Return the commands of `steps` in order. A failed check counts as passed if a hook accepted a later commit.

    The hook must have run the same check: the outputs of the hook up to this commit name its checks.
    """
    found: list[CommandOutcome] = []
    hook: set[str] = set()
    for commands, commits in steps:
        found += commands
        for commit in commits:
            hook.update(commit.checks)
            if commit.hash and hook and not commit.skips_hook:
                result = f"passed in the hook of {commit.hash[:SHORT_HASH]}"
                found = [
                    CommandOutcome(command.line, None, False, result, True, commit.place, command.runs)
                    if command.verifies and command.has_failed and is_named(command.line, hook)
                    else command
                    for command in found
                ]
    return found


def _last_runs(commands: Sequence[CommandOutcome]) -> list[CommandOutcome]:
    """Return the last run of each command, in the order of these runs."""
    last: dict[str, CommandOutcome] = {}
    for command in commands:
        key = check_key(command.line) if command.verifies else command.line
        before = last.pop(key, None)
        runs = command.runs + (before.runs if before else 0)
        last[key] = msgspec.structs.replace(command, runs=runs) if before else command
    return list(last.values())


def _important_last(commands: Sequence[CommandOutcome]) -> list[CommandOutcome]:
    """Return `commands` with failed commands at the end, and verifying commands before them."""
    return sorted(commands, key=lambda command: (command.has_failed, command.verifies))


def _alive(effects: Sequence[Effect]) -> list[Effect]:
    """Return the last effect of each key, without effects that are over."""
    last: dict[str, Effect] = {}
    for effect in effects:
        last.pop(effect.key, None)
        last[effect.key] = effect
    return [effect for effect in last.values() if effect.text]


def _seen(seen: Sequence[SeenFile], files: Sequence[ChangedFile], paths: Mapping[str, str]) -> list[SeenFile]:
    """Return the files that were read and not changed, each once with its total weight, the latest last."""
    changed = {path for file in files for path in (file.path, file.before) if path}
    weights: dict[str, int] = {}
    for file in seen:
        path = paths.get(file.path, file.path)
        weights[path] = weights.pop(path, 0) + file.weight
    return [SeenFile(path, weight) for path, weight in weights.items() if path not in changed]
