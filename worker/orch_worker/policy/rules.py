"""The rules that allow, ask about or deny a call, based on its operation and paths, the channel and the configuration.

Each source of rules returns a verdict, and the most restrictive verdict wins. This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase, translate
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS, CODE_TOOLS, Operation, facts_of
from orch_protocol.policy.policy import (
    EXIT_PLAN,
    RANK,
    TASK_CREATE,
    Approval,
    Channel,
    DataClass,
    Model,
    PolicyConfig,
    PolicySpec,
    Verdict,
)

__all__ = [
    "ANY_FOLDERS",
    "CREDENTIALS",
    "RECURSIVE",
    "JudgedCall",
    "NamedPath",
    "ResolvedRules",
    "check_path_rules",
    "is_usable_credential",
    "judge",
    "matching_rules",
    "operation_of",
    "path_matcher",
    "path_matches",
    "reachable_rules",
    "requested_credentials",
    "rules_below",
    "skipped_rules",
    "split_rule",
    "strictest",
]

CREDENTIALS: Final = (
    "~/.ssh",
    "~/.gnupg",
    "~/.netrc",
    "~/.git-credentials",
    "~/.config/git/credentials",
    "~/.config/gh",
    "~/.npmrc",
    "~/.pypirc",
    "~/.aws/credentials",
    "~/.aws/sso/cache",
    "~/.aws/cli/cache",
    "~/.azure",
    "~/.config/gcloud",
    "~/.kube/config",
    "~/.docker/config.json",
    "~/.claude/.credentials.json",
    "~/.claude.json",
    "~/.codex/auth.json",
)
"""Paths of credentials for other systems. Variables can move them; see `credential_rules`.

The file `.env` of a project is not included, because the agent was given this folder.
"""

PLAN_MODE_DENIAL: Final = "plan mode allows no tool that writes or runs something"

RECURSIVE: Final = frozenset(name for name, facts in BUILTIN_TOOLS.items() if facts.recursive)
"""Tools that read folders recursively."""

ANY_FOLDERS: Final = "**"
"""A part of a rule that stands for any number of folders."""
_VARIABLE: Final = re.compile(r"\$[A-Za-z_{]")

APPROVALS: Final[dict[tuple[Channel, DataClass], dict[Operation, Approval]]] = {
    # A program has granted each tool by name, so the tools are allowed.
    ("api", "personal"): {"read": "allow", "write": "allow", "exec": "allow"},
    ("api", "code"): {"read": "allow", "write": "allow", "exec": "allow"},
    ("api", "random"): {"read": "allow", "write": "allow", "exec": "allow"},
    ("person", "personal"): {"read": "ask", "write": "ask", "exec": "ask"},
    ("person", "code"): {"read": "allow", "write": "ask", "exec": "ask"},
    ("person", "random"): {"read": "allow", "write": "allow", "exec": "allow"},
    ("cli", "personal"): {"read": "ask", "write": "ask", "exec": "ask"},
    ("cli", "code"): {"read": "allow", "write": "ask", "exec": "ask"},
    ("cli", "random"): {"read": "allow", "write": "allow", "exec": "allow"},
}


class NamedPath(Struct, frozen=True):
    """An absolute path in a call, as written (`written`) and with links resolved (`real`).

    The paths may contain the wildcards `*?[`.
    """

    written: str
    real: str


class JudgedCall(Struct, frozen=True):
    """A call to judge: the tool, its paths, and whether an earlier call of the turn used personal data.

    `planning` is True if the agent is in plan mode. `start` is the start folder of a recursive tool. `runs_code` is
    True if the tool is not built in and runs code elsewhere, as a tool of an executor.
    """

    tool: str
    paths: tuple[NamedPath, ...] = ()
    personal: bool = False
    planning: bool = False
    start: NamedPath | None = None
    runs_code: bool = False


class ResolvedRules(Struct, frozen=True):
    """The rules with absolute paths. Each path occurs as written and with links resolved.

    `usable` contains the credentials that commands can read. `present` contains the paths that exist.
    """

    spec: PolicySpec
    credentials: tuple[str, ...] = ()
    usable: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] | None = None
    personal: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    present: frozenset[str] = frozenset()
    untrusted: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()


def judge(call: JudgedCall, resolved_rules: ResolvedRules) -> Verdict:
    """Return the strictest verdict on `call`. `data` of the verdict is the class of the data that the call accesses."""
    data = _data_class(call, resolved_rules)
    verdicts = (
        *_path_verdicts(call, resolved_rules),
        _plan_mode_verdict(call),
        _operation_verdict(call, resolved_rules, data),
        _configured_verdict(call, resolved_rules),
    )
    return strictest(verdicts, data)


def strictest(verdicts: Iterable[Verdict], data: DataClass = "random") -> Verdict:
    """Return the most restrictive approval of `verdicts`, with the reasons of the verdicts that require it."""
    all_verdicts = tuple(verdicts)
    worst: Approval = max((each.approval for each in all_verdicts), key=RANK.__getitem__, default="allow")
    reasons = dict.fromkeys(each.reason for each in all_verdicts if each.approval == worst and each.reason)
    model: Model = "local" if any(each.model == "local" for each in all_verdicts) else "any"
    return Verdict(worst, model, "; ".join(reasons) if worst != "allow" else "", data)


def operation_of(tool: str) -> Operation:
    """Return the operation of `tool`. Return "exec" for an unknown tool."""
    return facts_of(tool).operation


def path_matches(path: str, rule: str) -> bool:
    """Return whether `path` is equal to `rule` or lies below `rule`.

    `path` and `rule` may contain wildcards. A rule without a slash matches any part of the path. See `split_rule`.
    """
    parts = path.strip("/").split("/")
    if "/" not in rule:
        return any(_part_matches(part, rule) for part in parts)
    rule_parts = split_rule(rule)
    return len(rule_parts) in _positions(rule_parts, parts, _part_matches)


def split_rule(rule: str) -> list[str]:
    """Return the parts of the absolute path `rule`. A part "**" stands for any number of folders, also for none.

    A "**" at the end stands for everything in the folder, as "*" does.
    """
    parts: list[str] = []
    for part in filter(None, rule.split("/")):
        if part != ANY_FOLDERS or parts[-1:] != [ANY_FOLDERS]:
            parts.append(part)
    return [*parts[:-1], "*"] if parts[-1:] == [ANY_FOLDERS] else parts


def _positions(rule_parts: list[str], parts: list[str], matches: Callable[[str, str], object]) -> set[int]:
    """Return how many of `rule_parts` can be matched by `parts`. There are several numbers if a rule contains "**".

    If all parts of the rule are matched, the path is equal to the rule or lies below the rule. `matches` tests a part
    of the path with a part of the rule.
    """
    if ANY_FOLDERS not in rule_parts:
        return {min(len(rule_parts), len(parts))} if all(map(matches, parts, rule_parts)) else set()

    def skip_any_folders(positions: set[int]) -> set[int]:
        return positions | {each + 1 for each in positions if rule_parts[each : each + 1] == [ANY_FOLDERS]}

    positions = skip_any_folders({0})
    for part in parts:
        staying = {each for each in positions if each == len(rule_parts) or rule_parts[each] == ANY_FOLDERS}
        moving = {each + 1 for each in positions - staying if matches(part, rule_parts[each])}
        positions = skip_any_folders(staying | moving)
        if not positions:
            break
    return positions


def _part_matches(part: str, rule: str) -> bool:
    return part == rule or fnmatchcase(part, rule) or fnmatchcase(rule, part)


def path_matcher(rules: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tests whether a path without wildcards lies below one of `rules`. See `path_matches`.

    The function caches the result for each folder, so it is fast for many files.
    """
    all_rules = tuple(rules)
    name_tests = [_part_test(rule) for rule in all_rules if "/" not in rule]
    path_rules = [split_rule(rule) for rule in all_rules if "/" in rule]
    tests = {part: _part_test(part) for rule in path_rules for part in rule}
    cache: dict[str, tuple[bool, list[Callable[[str], object]]]] = {}

    def match_folder(folder: str) -> tuple[bool, list[Callable[[str], object]]]:
        """Return whether all files in `folder` match. Also return the rules for the names of the files in `folder`."""
        parts = [part for part in folder.split("/") if part]
        all_match = any(test(part) for part in parts for test in name_tests)
        file_tests = list(name_tests)
        for rule in path_rules:
            positions = _positions(rule, parts, lambda part, rule_part: tests[rule_part](part))
            all_match = all_match or len(rule) in positions
            if len(rule) - 1 in positions:
                file_tests.append(tests[rule[-1]])
        return all_match, file_tests

    def matches(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if folder not in cache:
            cache[folder] = match_folder(folder)
        all_match, file_tests = cache[folder]
        return all_match or any(test(name) for test in file_tests)

    return matches


def _part_test(rule: str) -> Callable[[str], object]:
    if any(each in rule for each in "*?["):
        return re.compile(f"{translate(rule)}|{re.escape(rule)}\\Z").match
    return rule.__eq__


def matching_rules(call: JudgedCall, rules: Iterable[str]) -> Iterator[tuple[NamedPath, str]]:
    """Yield each path of `call` that matches a rule, together with the rule."""
    for rule in rules:
        for path in call.paths:
            if path_matches(path.written, rule) or path_matches(path.real, rule):
                yield path, rule


def reachable_rules(
    call: JudgedCall, rules: Iterable[str], resolved_rules: ResolvedRules
) -> Iterator[tuple[NamedPath, str]]:
    """Yield pairs for a recursive `call`: its start folder, and a rule that matches existing files in the folder."""
    if call.start is not None:
        for rule in rules:
            if rule in resolved_rules.present and path_matches(rule, call.start.real):
                yield call.start, rule


def skipped_rules(resolved_rules: ResolvedRules, call: JudgedCall, start: str) -> tuple[str, ...]:
    """Return the rules for the files that `call` must skip below the folder `start`.

    The skipped files are denied or need an approval. Rules that match `start` itself are left out, because the call was
    approved for these rules.
    """
    reads_need_approval = APPROVALS[resolved_rules.spec.channel, "personal"]["read"] != "allow"
    personal = resolved_rules.personal if reads_need_approval else ()
    # Otherwise the existing credentials were already checked.
    credentials = resolved_rules.credentials if call.start is None else ()
    need_approval = (rule for rule in (*personal, *credentials) if not path_matches(start, rule))
    return rules_below((*resolved_rules.denied, *need_approval), start)


def rules_below(rules: Iterable[str], start: str) -> tuple[str, ...]:
    """Return the rules that match paths below the folder `start`, but not the folder itself."""
    return tuple(
        rule for rule in rules if "/" not in rule or (_may_lie_below(rule, start) and not path_matches(start, rule))
    )


def _may_lie_below(rule: str, start: str) -> bool:
    above, any_folders, _ = rule.partition(f"/{ANY_FOLDERS}/")
    return path_matches(rule, start) or (any_folders != "" and path_matches(start, above or "/"))


def check_path_rules(config: PolicyConfig, sources: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError if a path in `config` contains a variable, because such a rule would match no path.

    `sources` contains the sources of the settings by dotted key.
    """
    taint = config.taint
    lists = {
        "denied_paths": config.denied_paths,
        "allowed_paths": config.allowed_paths or (),
        "personal_paths": config.personal_paths,
        "code_paths": config.code_paths,
        "usable_credentials": config.usable_credentials,
        "taint.untrusted_paths": taint.untrusted_paths,
        "taint.sensitive_paths": taint.sensitive_paths,
    }
    for name, rules in lists.items():
        if found := next(filter(_VARIABLE.search, rules), None):
            where = f"{sources[f'policy.{name}']}: " if sources else ""
            literal = "" if name == "usable_credentials" else ", or [$] for a dollar sign"
            raise ConfigError(
                f"{where}policy.{name} contains {found!r}, but variables are not expanded: write the path, with ~ for "
                f"the home folder{literal}"
            )


def is_usable_credential(path: str, usable: Iterable[str]) -> bool:
    """Return whether `path` is one of the paths `usable` or lies below one of them. Wildcards have no meaning."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in usable)


def requested_credentials(call: JudgedCall, resolved_rules: ResolvedRules, *, all: bool) -> tuple[str, ...]:
    """Return the existing credentials that an approval makes readable for the command `call`.

    These are the credentials that the call names, or all credentials. Credentials that are readable without an
    approval are left out.
    """
    if call.tool not in CODE_TOOLS:
        return ()
    rules = resolved_rules.credentials
    requested = rules if all else dict.fromkeys(rule for _, rule in matching_rules(call, rules))
    return tuple(
        rule
        for rule in requested
        if rule in resolved_rules.present and not is_usable_credential(rule, resolved_rules.usable)
    )


def _path_verdicts(call: JudgedCall, resolved_rules: ResolvedRules) -> Iterator[Verdict]:
    usable = resolved_rules.usable if call.tool in CODE_TOOLS else ()
    for path, rule in matching_rules(call, resolved_rules.credentials):
        if not is_usable_credential(rule, usable) and not is_usable_credential(path.real, usable):
            yield Verdict("ask", "local", f"{path.written} holds credentials")
    for path, rule in reachable_rules(call, resolved_rules.credentials, resolved_rules):
        yield Verdict("ask", "local", f"{path.written} has credentials below it, in {rule}")
    for path, rule in matching_rules(call, resolved_rules.denied):
        yield Verdict("deny", "any", f"{path.written} is denied by denied_paths ({rule})")
    if resolved_rules.allowed is not None:
        for path in call.paths:
            if not any(path_matches(path.real, rule) for rule in resolved_rules.allowed):
                yield Verdict("deny", "any", f"{path.written} is not in allowed_paths")


def _plan_mode_verdict(call: JudgedCall) -> Verdict:
    if not call.planning:
        return Verdict()
    if call.tool == EXIT_PLAN:
        return Verdict("ask", "any", "a plan needs approval")
    return Verdict() if operation_of(call.tool) == "read" else Verdict("deny", "any", PLAN_MODE_DENIAL)


def _data_class(call: JudgedCall, resolved_rules: ResolvedRules) -> DataClass:
    if call.personal or any(matching_rules(call, resolved_rules.personal)):
        return "personal"
    return "code" if any(matching_rules(call, resolved_rules.code)) else "random"


def _operation_verdict(call: JudgedCall, resolved_rules: ResolvedRules, data: DataClass) -> Verdict:
    operation = operation_of(call.tool)
    approval = APPROVALS[resolved_rules.spec.channel, data][operation]
    is_local = data == "personal" and approval != "allow"
    return Verdict(approval, "local" if is_local else "any", f"{call.tool} would {operation} where data is {data}")


def _configured_verdict(call: JudgedCall, resolved_rules: ResolvedRules) -> Verdict:
    rules = resolved_rules.spec.rules
    if call.tool in rules.permissions:
        return Verdict(rules.permissions[call.tool], "any", f"permissions.{call.tool} is configured so")
    if call.tool == TASK_CREATE:
        return Verdict("ask", "any", "a task list needs approval")
    if call.tool in rules.dangerous_tools:
        reason = f"{call.tool} is listed in policy.dangerous_tools"
    elif call.runs_code:
        reason = f"{call.tool} is a tool of an executor, which may run code"
    else:
        return Verdict()
    mode = rules.approval_mode or ("ask" if resolved_rules.spec.channel == "cli" else "allow")
    return Verdict(mode, "any", reason)
