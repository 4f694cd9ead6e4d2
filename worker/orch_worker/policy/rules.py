"""Whether a call may run: by what it does, what it names, who asked for the work, and what is configured. No I/O.

Every source gives its own verdict, and the most restrictive one counts: none of them makes another's milder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase, translate
from typing import Final

from msgspec import Struct

from orch_protocol.policy.policy import (
    EXIT_PLAN,
    RANK,
    TASK_CREATE,
    Approval,
    Channel,
    DataClass,
    Model,
    Operation,
    PolicySpec,
    Verdict,
)
from orch_protocol.resources.skills import READ_SKILL

__all__ = [
    "CREDENTIALS",
    "OPERATIONS",
    "RECURSIVE",
    "JudgedCall",
    "NamedPath",
    "ResolvedRules",
    "at_hand",
    "judge",
    "matching_rules",
    "operation_of",
    "passed_over",
    "reachable_rules",
    "strictest",
    "under",
    "within",
]

CREDENTIALS: Final = (
    "~/.ssh",
    "~/.gnupg",
    "~/.aws/credentials",
    "~/.config/gcloud",
    "~/.kube/config",
    "~/.docker/config.json",
)
"""What lets one in elsewhere. A project's `.env` is not among them: it belongs to the folder an agent was given."""

_READS: Final = (
    *("list_files", "grep_files", "read_file", "git_status", "git_diff", "git_log", "describe_data"),
    *("describe_variables", "web_search", "fetch_url", "py_help", "installed_packages", "read_handle", "bg_status"),
    *("chat", "list_models", "search_archive", "read_archive", "map_subagents", EXIT_PLAN),
    *(TASK_CREATE, "task_update", "recall", READ_SKILL, "pin_object"),
    # What an agent's children do is judged when they do it.
    *("spawn_subagent", "query_subagent", "collect_subagent", "wait_subagents", "list_subagents"),
)
OPERATIONS: Final[dict[str, Operation]] = {
    **dict.fromkeys(_READS, "read"),
    **dict.fromkeys(("write_file", "replace_in_file", "kill_subagent", "remember"), "write"),
    **dict.fromkeys(("bash", "bg_kill", "run_python", "run_python_script"), "exec"),
}
"""What a tool does. One that is not here counts as the worst: exec."""

PLANNING: Final = "in plan mode nothing is written or run"

RECURSIVE: Final = frozenset({"list_files", "grep_files"})
"""Tools that go down into the folders they are given."""

TENSOR: Final[dict[tuple[Channel, DataClass], dict[Operation, Approval]]] = {
    # What a program granted by name, it wants to be used.
    ("api", "personal"): {"read": "allow", "write": "allow", "exec": "allow"},
    ("api", "code"): {"read": "allow", "write": "allow", "exec": "allow"},
    ("api", "random"): {"read": "allow", "write": "allow", "exec": "allow"},
    ("cli", "personal"): {"read": "ask", "write": "ask", "exec": "ask"},
    ("cli", "code"): {"read": "allow", "write": "ask", "exec": "ask"},
    ("cli", "random"): {"read": "allow", "write": "allow", "exec": "allow"},
}


class NamedPath(Struct, frozen=True):
    """A path that a call names: absolute, as it is spelled, and with its links resolved. Either may hold `*?[`."""

    spelled: str
    real: str


class JudgedCall(Struct, frozen=True):
    """A call to be judged: the tool, what it names, and whether personal data was touched before, in the same turn.

    `planning` says that the agent is in plan mode. One that goes down into folders begins at `start`.
    """

    tool: str
    places: tuple[NamedPath, ...] = ()
    personal: bool = False
    planning: bool = False
    start: NamedPath | None = None


class ResolvedRules(Struct, frozen=True):
    """The rules, with their paths as absolute ones: each as it is spelled and with its links resolved.

    `present` are those that exist.
    """

    spec: PolicySpec
    credentials: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] | None = None
    personal: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    present: frozenset[str] = frozenset()
    untrusted: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()


def judge(call: JudgedCall, grounds: ResolvedRules) -> Verdict:
    """Return the verdict on `call`: the strictest of all sources; its `data` is the class of what the call touches."""
    data = _data_class(call, grounds)
    said = (*_paths(call, grounds), _plan(call), _tensor(call, grounds, data), _configured(call, grounds))
    return strictest(said, data)


def strictest(verdicts: Iterable[Verdict], data: DataClass = "random") -> Verdict:
    """Return what all `verdicts` together come to: the most restrictive approval, and who demands it."""
    all_of_them = tuple(verdicts)
    worst: Approval = max((each.approval for each in all_of_them), key=RANK.__getitem__, default="allow")
    reasons = dict.fromkeys(each.reason for each in all_of_them if each.approval == worst and each.reason)
    model: Model = "local" if any(each.model == "local" for each in all_of_them) else "any"
    return Verdict(worst, model, "; ".join(reasons) if worst != "allow" else "", data)


def operation_of(tool: str) -> Operation:
    """Return what `tool` does; one that is not known, the worst."""
    return OPERATIONS.get(tool, "exec")


def within(path: str, rule: str) -> bool:
    """Say whether `path` is `rule` or lies below it. Both may hold wildcards; a rule without a slash is any name."""
    parts = path.strip("/").split("/")
    if "/" not in rule:
        return any(_same(part, rule) for part in parts)
    wanted = [part for part in rule.strip("/").split("/") if part]
    return len(parts) >= len(wanted) and all(map(_same, parts, wanted))


def _same(part: str, rule: str) -> bool:
    return part == rule or fnmatchcase(part, rule) or fnmatchcase(rule, part)


def under(rules: Iterable[str]) -> Callable[[str], bool]:
    """Return what says of the path of a file, as `within` does of one without wildcards, whether it is under one of
    `rules`: soon, however many are asked about, since most lie in few folders."""
    given = tuple(rules)
    names = [_is(rule) for rule in given if "/" not in rule]
    wanted = [[_is(part) for part in rule.split("/") if part] for rule in given if "/" in rule]
    known: dict[str, tuple[bool, list[Callable[[str], object]]]] = {}

    def looked_at(folder: str) -> tuple[bool, list[Callable[[str], object]]]:
        """Return whether all in `folder` is, and what its files are called that are."""
        parts = [part for part in folder.split("/") if part]
        met = [rule for rule in wanted if all(is_it(part) for is_it, part in zip(rule, parts, strict=False))]
        whole = any(is_it(part) for part in parts for is_it in names) or any(len(rule) <= len(parts) for rule in met)
        return whole, [*names, *(rule[-1] for rule in met if len(rule) == len(parts) + 1)]

    def says(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if folder not in known:
            known[folder] = looked_at(folder)
        whole, called = known[folder]
        return whole or any(is_it(name) for is_it in called)

    return says


def _is(rule: str) -> Callable[[str], object]:
    if any(each in rule for each in "*?["):
        return re.compile(f"{translate(rule)}|{re.escape(rule)}\\Z").match
    return rule.__eq__


def matching_rules(call: JudgedCall, rules: Iterable[str]) -> Iterator[tuple[NamedPath, str]]:
    """Yield the places that `call` names and the rules that they fall under."""
    for rule in rules:
        for place in call.places:
            if within(place.spelled, rule) or within(place.real, rule):
                yield place, rule


def reachable_rules(call: JudgedCall, rules: Iterable[str], grounds: ResolvedRules) -> Iterator[tuple[NamedPath, str]]:
    """Yield where a recursive tool begins with each rule that it would reach from there."""
    if call.start is not None:
        for rule in rules:
            if rule in grounds.present and within(rule, call.start.real):
                yield call.start, rule


def passed_over(grounds: ResolvedRules, call: JudgedCall, start: str) -> tuple[str, ...]:
    """Return the rules whose files `call` passes over where it comes upon them below `start`: those that nobody is
    asked about before it has looked, and that are not read unasked.

    Where it begins in what they are about, somebody was asked about that.
    """
    asks = TENSOR[grounds.spec.channel, "personal"]["read"] != "allow"
    personal = grounds.personal if asks else ()
    credentials = grounds.credentials if call.start is None else ()  # else it was judged by those that are there
    asked = (rule for rule in (*personal, *credentials) if not within(start, rule))
    return at_hand((*grounds.denied, *asked), start)


def at_hand(rules: Iterable[str], start: str) -> tuple[str, ...]:
    """Return those of `rules` that something below the folder `start` can fall under, and not all of it does."""
    return tuple(rule for rule in rules if "/" not in rule or (within(rule, start) and not within(start, rule)))


def _paths(call: JudgedCall, grounds: ResolvedRules) -> Iterator[Verdict]:
    for place, _ in matching_rules(call, grounds.credentials):
        yield Verdict("ask", "local", f"{place.spelled} holds credentials")
    for place, rule in reachable_rules(call, grounds.credentials, grounds):
        yield Verdict("ask", "local", f"{place.spelled} has credentials below it, in {rule}")
    for place, rule in matching_rules(call, grounds.denied):
        yield Verdict("deny", "any", f"{place.spelled} is denied by denied_paths ({rule})")
    if grounds.allowed is not None:
        for place in call.places:
            if not any(within(place.real, rule) for rule in grounds.allowed):
                yield Verdict("deny", "any", f"{place.spelled} is not in allowed_paths")


def _plan(call: JudgedCall) -> Verdict:
    if not call.planning:
        return Verdict()
    if call.tool == EXIT_PLAN:
        return Verdict("ask", "any", "a plan is to be approved")
    return Verdict() if operation_of(call.tool) == "read" else Verdict("deny", "any", PLANNING)


def _data_class(call: JudgedCall, grounds: ResolvedRules) -> DataClass:
    if call.personal or any(matching_rules(call, grounds.personal)):
        return "personal"
    return "code" if any(matching_rules(call, grounds.code)) else "random"


def _tensor(call: JudgedCall, grounds: ResolvedRules, data: DataClass) -> Verdict:
    operation = operation_of(call.tool)
    approval = TENSOR[grounds.spec.channel, data][operation]
    is_local = data == "personal" and approval != "allow"
    return Verdict(approval, "local" if is_local else "any", f"{call.tool} would {operation} where data is {data}")


def _configured(call: JudgedCall, grounds: ResolvedRules) -> Verdict:
    rules = grounds.spec.rules
    if call.tool in rules.permissions:
        return Verdict(rules.permissions[call.tool], "any", f"permissions.{call.tool} is configured so")
    if call.tool == TASK_CREATE:
        return Verdict("ask", "any", "tasks are to be approved")
    if call.tool not in rules.dangerous_tools:
        return Verdict()
    mode = rules.approval_mode or ("ask" if grounds.spec.channel == "cli" else "allow")
    return Verdict(mode, "any", f"{call.tool} is one of dangerous_tools")
