"""Recognizes commands that verify something, the line of their output that states the result, and failing results.

The rules look for the shapes of result lines, for example a number followed by "failed". They name few tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from .prose import shorten
from .shell import Step, steps_of

__all__ = [
    "Verdict",
    "check_key",
    "checks_named",
    "clean_output",
    "exit_code_in",
    "failure_line",
    "has_result",
    "is_named",
    "is_reading",
    "is_search",
    "prints_findings",
    "result_verdict",
    "stated_result",
    "verdicts",
    "verifies",
    "with_reason",
]

RESULT_CHARS: Final = 110
FAILURE_CHARS: Final = 150
MAX_LINES: Final = 4_000
EDGE: Final = 400

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_EXIT: Final = re.compile(
    r"\bexit(?:ed)?(?:\s+(?:with|code|status))*\s*[:=]?\s*(-?\d{1,3})\b"
    r"|\"?(?:exit_?code|return_?code)\"?\s*[:=]\s*(-?\d{1,3})\b",
    re.I,
)

_RUNNERS: Final = frozenset(
    (
        *("pytest", "py.test", "tox", "nox", "mypy", "pyright", "ruff", "flake8", "pylint", "pyflakes"),
        *("bandit", "jest", "vitest", "mocha", "ava", "jasmine", "cypress", "tsc", "tsgo", "vue-tsc"),
        *("eslint", "biome", "oxlint", "stylelint", "rspec", "rubocop", "minitest", "phpunit", "phpstan"),
        *("psalm", "ctest", "ninja", "make", "gmake", "just", "gradle", "gradlew", "mvn", "mvnw", "ant"),
        *("bazel", "buck2", "sbt", "lein", "ghc", "cabal", "stack", "dune", "zig", "golangci-lint"),
        *("staticcheck", "shellcheck", "hadolint", "actionlint", "yamllint", "clippy-driver", "xcodebuild"),
        *("swiftlint", "ktlint", "detekt", "checkstyle", "busted", "luacheck", "markdownlint", "vale"),
        *("htmlproofer", "pre-commit", "lefthook", "playwright", "bats", "hurl", "cmake", "meson"),
        *("clang-tidy", "cppcheck"),
    )
)
_LAUNCHERS: Final = frozenset(
    (
        *("npm", "npx", "pnpm", "yarn", "bun", "bunx", "deno", "node", "uv", "uvx", "poetry", "pipenv"),
        *("hatch", "pdm", "rye", "python", "python3", "py", "bundle", "rake", "rails", "bin/rails", "mix"),
        *("rebar3", "cargo", "go", "dotnet", "swift", "flutter", "dart", "composer", "php", "artisan"),
        *("docker", "docker-compose", "nix", "elm", "gleam", "terraform", "helm", "kubectl", "ansible-lint"),
        *("ansible-playbook", "dbt", "moon", "nx", "turbo", "lerna", "task", "mage", "pixi"),
    )
)
_VERIFYING_WORD: Final = re.compile(
    r"(?:^|[:/_-])(?:tests?|specs?|check|checks|lint|linter|typecheck|type-check|tsc|build|compile|verify|validate|vet|"
    r"clippy|credo|dialyzer|coverage|quality|precommit|pre-commit|analyze|analyse|unittest|doctest|e2e|format|fmt|plan|"
    r"bench|pytest|jest|vitest|mypy|ruff|rspec|tsgo|eslint|biome|phpunit|playwright|doctor|audit)(?:$|[:/_.-])"
)
_FORMATTERS: Final = frozenset(("black", "prettier", "isort", "gofmt", "rustfmt", "clang-format", "autopep8", "yapf"))
_NAMED_TOOLS: Final = frozenset(("credo", "dialyzer", "clippy", "sobelow", "rubocop", *_FORMATTERS))
_NAMED_COMMAND: Final = re.compile(
    r"\b(?:npm|pnpm|yarn|bun|mix|cargo|go|make|just|poetry|composer|bundle|dotnet|gradle)(?: (?:run|exec))? "
    r"(?:[\w-]+:)?(?:tests?|check|lint|build|vet|compile|typecheck)\b"
)
_COMMITTED: Final = re.compile(r"^\[[^\]\n]+ [0-9a-f]{7,40}\] .*", re.MULTILINE)
_WORD: Final = re.compile(r"[a-z][\w.-]*[a-z]")
HOOK_CHARS: Final = 20_000
MAX_NAMED: Final = 12
_ONLY_WITH_CHECK: Final = frozenset(("format", "fmt"))
_CHECK_OPTION: Final = re.compile(r"--?(?:check|l|d|diff|verify|check-formatted|dry-run|verify-no-changes)\b")
_NO_CHECK: Final = re.compile(
    r"\b(?:install|add|get|fetch|update|upgrade|init|new|create|publish|clean|fix|start|serve|dev|watch|--version|-V)\b"
)
_SYNTAX: Final = re.compile(
    r"^(?:(?:ba|z)?sh\s+-n\b|node\s+--check\b|php\s+-l\b|ruby\s+-c\b|python3?\s+-m\s+(?:py_compile|compileall)\b)"
)
_SCRIPT: Final = re.compile(
    r"^(?:\./|\S*/)?(?:[\w.-]*(?:test|check|lint|verify|validate|build)[\w-]*)(?:\.(?:sh|py|js|ts|rb|pl|exs|ps1))?$"
)
_READING: Final = frozenset(
    (
        *("cat", "head", "tail", "less", "more", "sed", "awk", "grep", "egrep", "fgrep", "rg", "ag", "ack"),
        *("find", "fd", "ls", "tree", "wc", "sort", "uniq", "cut", "diff", "stat", "file", "du", "df"),
        *("echo", "printf", "pwd", "which", "type", "whoami", "date", "env", "printenv", "jq", "yq", "xxd"),
        *("od", "strings", "history", "man", "tldr", "bat", "column", "tr", "nl", "test", "[", "true"),
        *("false", "sleep", "read", "export", "set", "alias", "mkdir", "touch", "cp", "mv", "rm", "ln"),
        *("chmod", "chown", "cd", "pushd", "popd", "ps", "top", "lsof"),
    )
)
_READING_GIT: Final = frozenset(
    (
        *("log", "show", "diff", "status", "blame", "grep", "ls-files", "branch", "remote", "rev-parse"),
        *("describe", "reflog"),
    )
)

# --- Result lines ---

_COUNT: Final = r"(?<![\w./-])\d[\d,]*"
_THINGS: Final = (
    r"(?:tests?|specs?|examples?|assertions?|doctests?|scenarios?|features?|cases?|suites?|checks?|properties|property|"
    r"failures?|failed|failing|fail|errors?|passed|passing|pass|ok|skipped|pending|warnings?|problems?|issues?|offenses?|"
    r"violations?|suggestions?|vulnerabilities|diagnostics?|hints?|todo|ignored)"
)
_SUMMARY: Final = re.compile(
    # "41 passed, 1 failed", "12 examples, 0 failures", "Found 3 errors in 1 file", "0 warnings"
    rf"{_COUNT}\s+(?:\w+\s+){{0,3}}?{_THINGS}\b"
    # "Tests: 3", "Failures: 0", "errors=1"
    r"|\b(?:tests?(?:\s+run|\s+files)?|failures?|failed|errors?|passed|skipped|total)\s*[:=]\s*\d"
    r"|\btest result:|\bBUILD (?:SUCCESSFUL|FAILED|SUCCESS|FAILURE)|\bBuild (?:succeeded|FAILED|failed|complete)"
    r"|\b(?:Compiled successfully|Failed to compile|Finished `?\w+|All checks passed|All tests passed"
    r"|All matched files)"
    r"|\bno (?:issues|errors|problems|warnings|offenses|vulnerabilities|lint errors)\b(?: found)?"
    r"|\bfound no (?:issues|problems|errors)"
    r"|\bwould (?:be )?reformat|\bneed(?:s)? (?:re)?format|\bnot formatted\b|\bdone \(passed|\bTotal errors\b"
    r"|^(?:ok|FAIL|PASS|---\s+FAIL|---\s+PASS|OK|FAILED|PASSED|SUCCESS|FAILURE|ERROR)(?:$|[\s(:!.])|^not ok \d"
    r"|^Generated \S+ app"
    r"|\bChecked \d+ files?\b|\bSuccess:|^make(?:\[\d+\])?: \*\*\*|\bcould not compile\b|\baborting due to\b"
    r"|\bcompilation failed\b",
    re.IGNORECASE,
)
_DETAIL: Final = re.compile(r"^\s*(?:[#>*|]|\d+[→|:\t]|\w+\(|import |from |def |class |fn |func |let |const |var )")
_STRONG: Final = re.compile(
    rf"{_COUNT}\s+(?:tests?|specs?|examples?|passed|passing|failed|failing|failures?|problems?|errors?|offenses?|scenarios?)\b"
    r"|\btest result:|\bTests?:\s|\bTests run:|\bfound no issues|\bno issues found|mods/funs, found|\bdone \(passed"
    r"|\bAll (?:checks|tests) passed|\bBUILD (?:SUCCESSFUL|FAILED|SUCCESS|FAILURE)|^(?:OK|FAILED|ok|FAIL|PASS)(?:$"
    r"|[\s(:!])",
    re.IGNORECASE,
)
_BAD_COUNT: Final = re.compile(
    r"(?<![\w./-])([1-9][\d,]*)\s+(?:\w+\s+){0,3}?(?:failures?|failed|failing|errors?|error\(s\)|problems?|issues?|offenses?|"
    r"violations?|suggestions?|broken|vulnerabilities)\b"
    r"|\b(?:failures?|failed|errors?|error\(s\))\s*[:=]\s*[1-9]",
    re.IGNORECASE,
)
_BAD: Final = re.compile(
    r"\bBUILD (?:FAILED|FAILURE)|\bBuild (?:FAILED|failed)|\bFailed to compile|^---\s+FAIL|^FAIL(?:ED|URE)?(?:$"
    r"|[\s(:!])"
    r"|\btest result: FAILED|\bcould not compile\b|^make(?:\[\d+\])?: \*\*\*|^not ok \d|\baborting due to\b"
    r"|\bnot formatted\b"
    r"|\bwould (?:be )?reformat\b(?<!0 files would be reformatted)|\bcompilation failed\b|\bTotal errors: [1-9]"
)
_FINE: Final = re.compile(
    r"\b(?:0|no) (?:\w+ ){0,2}(?:failures?|failed|failing|errors?|problems?|issues?|offenses?)\b"
    r"|\bfound no (?:issues|problems)"
    r"|\b(?:failures?|failed|errors?)\s*[:=]\s*0\b|\bSuccess:|\bpassed successfully\b",
    re.IGNORECASE,
)

# --- Lines that state a failure ---

_ERROR_LINE: Final = re.compile(
    r"^(?:[\w./@-]*:?\s*)?(?:fatal|panic|error|ERROR|Error|FATAL|E)(?:\[\w+\])?\s*[:!]\s*\S"
    r"|^(?:\*\* )?\(?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Failure|Warning|Interrupt|Exit)\b\)?(?::|\s*$"
    r"| -|\s\S)"
    r"|^[\w./@+-]+[:(]\d+(?:[:,]\d+)?\)?:?\s*-?\s*(?:fatal )?(?:error|Error|ERROR)\b"
    r"|^(?:thread '.*' panicked|panic: |Traceback |Assertion|AssertionError|Segmentation fault|Killed\b|Uncaught )"
    r"|\b(?:command not found|No such file or directory|[Pp]ermission denied|not found: |cannot find|Cannot find"
    r"|is not recognized)\b"
    r"|^(?:\*\* \(|== Compilation error|error TS\d+|npm (?:ERR!|error) (?!A complete log)|CMake Error|rejected|! \["
    r"|CONFLICT )"
    r"|\[error\]|\bexit(?:ed)? with (?:code |status )?[1-9]|\bUnable to\b|\bCould not\b|\bcannot\b|\bfailed\b"
    r"|\bFAILED\b"
)
_REASON: Final = re.compile(
    # "TypeError: ...", "FAILED tests/a.py::test_b - ValueError: ...", "** (RuntimeError) ...", "thread 'a' panicked"
    r"^(?:FAILED \S+ - |E\s+)?(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Failure)\s*:\s*\S"
    r"|^\*\* \(\S+\)\s*\S|^E\s+assert\b.*\S|^[Aa]ssertion\b.*\S|^thread '.*' panicked|^Failure/Error: \S"
    r"|^(?:\S+:\d+(?::\d+)?:\s*)?(?:fatal |internal )?(?:fatal|panic|error|Error)(?:\[\w+\]| TS\d+)?\s*:\s*\S"
    r"|^expect\(.*\)\.\w+|\(\d+,\d+\): error "
)
"""A line of a failing check that states the reason, such as an exception with its message."""
_BEFORE_REASON: Final = re.compile(r"^(?:FAILED \S+ - |E\s+)")
_STACK: Final = re.compile(r"^\s*(?:at |File \"|\.\.\. |in `|from |\d+: |#\d+ |\(|\^|~|-->|\||=)")
_EXIT_ONLY: Final = re.compile(
    r"^\W*(?:(?:Command |Process |Error: )?exit(?:ed)?(?: with)?(?: code| status)?:?\s*-?\d+|\(no output\)"
    r"|no output)\W*$",
    re.IGNORECASE,
)
_WITH_VALUE: Final = re.compile(
    r"\s--?(?:format|reporter|color|colour|output-format|seed|tb|config|max-warnings|timeout|log-level|verbosity|o|j"
    r"|W|q|v+)(?:[ =][^-\s]\S*)?(?=\s|$)"
)
"""Options that do not change what is verified, with their values."""
_SELECTS: Final = re.compile(
    r"-[kmtRn]$|-run\b|--?(?:only|exclude|include|filter|tests?|grep|lf|ff|last-failed|failed|failed-first|stale|changed|since|run|testNamePattern"
    r"|test-name-pattern|example|tag|tags|package|p|project|workspace|bin|lib|select|ignore|file|files|path|shard|gtest_filter|e)\b"
)
_FINDING: Final = re.compile(
    r"(?:\./)?[\w@+-][\w./@+-]*\.\w{1,6}(?::\d+(?::\d+)?:?|\(\d+,\d+\):)\s*(?!.*\b(?:[Ww]arning|note|info|PASSED|ok)\b)\S"
)
"""A finding of a checker: a file, a line, and what is wrong there."""
_WRAPPING: Final = re.compile(r"<(?:tool_use_)?error>(.*?)(?:</(?:tool_use_)?error>|\Z)", re.DOTALL)
_DECORATION: Final = re.compile(r"^(?:\[(?:INFO|ERROR|WARNING)\]\s*|\*\s)?[\s=\-#│┃|✖✗✘✓✔×»>•·]+|[\s=\-*│┃|]+$")


_TESTS: Final = re.compile(r"test|spec|jest|mocha|playwright|cypress|\btox\b|\bnox\b|\bbats\b", re.IGNORECASE)
_TESTED: Final = re.compile(r"\btests?\b|\bpassed\b|\bfailing\b|\bexamples?\b", re.IGNORECASE)


class Verdict(Struct, frozen=True):
    """The result of one verifying command. `failed` is None if the output does not tell."""

    line: str
    failed: bool | None


def clean_output(text: str) -> str:
    """Return `text` without escape sequences and carriage returns."""
    text = _ANSI.sub("", text) if "\x1b" in text else text
    if text.count("\\n") > 2:  # a program printed the escaped output of another program
        text = "\n".join(line.replace("\\n", "\n") if line.count("\\n") > 1 else line for line in text.split("\n"))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def exit_code_in(result: str) -> int | None:
    """Return the exit code that a tool printed at the beginning or end of `result`. Return None if there is none.

    Elsewhere, a similar text may be part of the output.
    """
    edge = result if len(result) <= 2 * EDGE else f"{result[:EDGE]}\n{result[-EDGE:]}"
    codes = [int(match[1] or match[2]) for match in _EXIT.finditer(edge)]
    return codes[-1] if codes else None


def is_reading(step: Step) -> bool:
    """Return whether the command only reads, searches or moves files, so that its output shows other texts."""
    words = step.words
    if not words:
        return True
    name = words[0].rpartition("/")[2]
    if name == "git":
        return next((word for word in words[1:] if not word.startswith("-")), "") in _READING_GIT
    return name in _READING


def is_search(step: Step) -> bool:
    """Return whether the command searches for a text. Such commands end with the exit code 1 if they find nothing."""
    return step.words[:1] in (["grep"], ["egrep"], ["fgrep"], ["rg"], ["ag"], ["ack"]) or step.text.startswith(
        "git grep"
    )


def verifies(step: Step) -> bool:
    """Return whether the command runs tests, a build or a check."""
    words = step.words
    if not words or step.joint == "|" or is_reading(step):
        return False
    name = words[0].rpartition("/")[2]
    if _SYNTAX.match(step.text):
        return True
    if name in _FORMATTERS:
        return bool(_CHECK_OPTION.search(step.text))
    if name in _RUNNERS:
        return not ({"install", "clean", "--version", "--help", "init"} & set(words[1:3]))
    if name in _LAUNCHERS:
        rest = [word for word in words[1:6] if "=" not in word][:4]
        for word in rest:
            if word in _RUNNERS or word in _FORMATTERS:
                return word in _RUNNERS or bool(_CHECK_OPTION.search(step.text))
            if match := _VERIFYING_WORD.search(word):
                found = match[0].strip(":/_.-")
                if found in _ONLY_WITH_CHECK and not _CHECK_OPTION.search(step.text):
                    continue
                return found == word or not word.startswith("-")
            if _NO_CHECK.fullmatch(word):
                return False
        return False
    return bool(_SCRIPT.match(words[0])) and not words[0].startswith("-")


def check_key(line: str) -> str:
    """Return the key of a verifying command. Runs with other options have the same key, unless an option selects a
    part.
    """
    words = _WITH_VALUE.sub("", line).split()
    if any(_SELECTS.match(word) for word in words):
        return " ".join(words)
    return " ".join(word for word in words if not word.startswith("-"))


def checks_named(output: str) -> tuple[str, ...]:
    """Return the checks that the output of a hook names: tools such as "credo", and commands such as "npm test"."""
    text = clean_output(output[:HOOK_CHARS]).lower()
    tools = [word for word in _WORD.findall(text) if word in _RUNNERS or word in _NAMED_TOOLS]
    return tuple(dict.fromkeys([*_NAMED_COMMAND.findall(text), *tools]))[:MAX_NAMED]


def is_named(line: str, checks: Iterable[str]) -> bool:
    """Return whether the verifying command `line` is one of `checks`, which `checks_named` returned."""
    key = check_key(line).lower()
    return any(key.startswith(each) if " " in each else each in key.split() for each in checks)


def has_result(result: str) -> bool:
    """Return whether `result` contains the summary of tests or checks."""
    for line in _lines(result)[-12:]:
        bare = _undecorated(line)
        if len(bare) <= 160 and not _DETAIL.match(line) and (match := _STRONG.search(bare)) and match.start() < 25:
            return True
    return False


def verdicts(steps: Sequence[Step], result: str, *, failed: bool) -> dict[int, Verdict]:
    """Return the verdicts of the verifying commands among `steps`, by position, from their common output `result`.

    `failed` is True if the whole call failed. A command that did not run, or whose result is unknown because a later
    command printed the only result, is left out.
    """
    places = [index for index, step in enumerate(steps) if verifies(step)]
    if not places:
        return {}
    summaries = _summaries(result)
    if (
        failed
        and not summaries
        and _filters(steps)
        and not [line for line in _lines(result) if not _EXIT_ONLY.match(line)]
    ):
        failed = False  # a filter for findings found none
    chained = all(steps[index].joint in ("", "&&", "|") for index in range(places[0] + 1, places[-1] + 1))
    if len(places) == 1:
        ended = places[0] == len(steps) - 1 or all(step.joint == "|" for step in steps[places[0] + 1 :])
        return {places[0]: _verdict(result, summaries, failed=failed and (ended or not summaries))}
    if len(summaries) == len(places):
        return {
            index: Verdict(_short(line), _is_bad(line) or (failed and index == places[-1]))
            for index, line in zip(places, summaries, strict=True)
        }
    last = _verdict(result, summaries, failed=failed)
    if not chained:
        return {places[-1]: last}
    if not last.failed:
        return {**{index: Verdict("", False) for index in places[:-1]}, places[-1]: last}
    # In a chain, a failing command is the last one that ran.
    stop = min(max(len(summaries), 1), len(places)) - 1
    tests = [number for number, place in enumerate(places) if _TESTS.search(steps[place].text)]
    if len(tests) == 1 and _TESTED.search(last.line):
        stop = tests[0]
    return {**{index: Verdict("", False) for index in places[:stop]}, places[stop]: last}


def _filters(steps: Sequence[Step]) -> bool:
    """Return whether the output goes through a search, which fails when it finds nothing."""
    return steps[-1].joint == "|" and is_search(steps[-1])


def result_verdict(result: str, *, failed: bool) -> Verdict:
    """Return the verdict of one command from its output `result`. `failed` is True if the call failed."""
    return _verdict(result, _summaries(result), failed=failed)


def stated_result(command: str, result: str) -> str:
    """Return the line in which the output `result` of `command` states its result. "" if the command only reads."""
    if match := _COMMITTED.search(result):
        return match[0]
    steps = [step for step in steps_of(command) if step.joint != "|"]
    if all(is_reading(step) for step in steps) and not has_result(result):
        return ""
    return result_verdict(result, failed=False).line


def prints_findings(command: str) -> bool:
    """Return whether no output of `command` states a result: it searches, or verifies something."""
    return any(is_search(step) or verifies(step) for step in steps_of(command))


def failure_line(result: str) -> str:
    """Return the line of a failing `result` that states the failure, in its own words."""
    if match := _WRAPPING.search(result):
        result = match[1]
    lines = _lines(result)
    lines = [line for line in lines if not _EXIT_ONLY.match(line)] or lines
    if not lines:
        return "no output"
    if lines[0].startswith("Traceback"):
        # The last line of a Python traceback states the exception.
        after = next((line for line in lines[1:] if not line[0].isspace() and not _STACK.match(line)), lines[-1])
        return shorten(after.strip(), FAILURE_CHARS)
    for line in lines:
        bare = _undecorated(line)
        if _ERROR_LINE.search(bare) and not _STACK.match(line) and not re.match(r"\d+ ?[│→|]", bare):
            return shorten(bare, FAILURE_CHARS)
    return shorten(_undecorated(lines[0]) or lines[0], FAILURE_CHARS)


def with_reason(line: str, result: str) -> str:
    """Return the result `line` of a failed check, with the reason from its output `result` if `line` only counts."""
    if not _BAD_COUNT.search(line):
        return line
    for each in _lines(result):
        bare = _undecorated(each)
        if _REASON.search(bare) and not _STACK.match(each) and not _BAD_COUNT.search(bare):
            return f"{line}: {shorten(_BEFORE_REASON.sub('', bare), RESULT_CHARS)}"
    return line


def _verdict(result: str, summaries: Sequence[str], *, failed: bool) -> Verdict:
    bad = [line for line in summaries if _is_bad(line)]
    if telling := [line for line in bad if " " in line]:
        bad, summaries = telling, [line for line in summaries if " " in line]
    if bad or (summaries and not failed):
        # The last summary is the total, unless an earlier one states the failure.
        line = summaries[-1] if _is_bad(summaries[-1]) or not bad or _FINE.search(summaries[-1]) is None else bad[-1]
        return Verdict(_short(line), bool(bad) or failed)
    if failed:
        return Verdict(failure_line(result), True)
    lines = [line for line in _lines(result) if not _EXIT_ONLY.match(line) and not line.startswith("> ")]
    if not lines:
        return Verdict("", False)
    if findings := [line for line in lines if _FINDING.match(_undecorated(line))]:
        more = f" ({len(findings)} findings)" if len(findings) > 1 else ""
        return Verdict(_short(findings[0]) + more, True)
    error = next((line for line in lines if re.match(r"\s*(?:error|fatal)(?:\[\w+\]|:| TS\d)", line)), "")
    return Verdict(_short(error), True) if error else Verdict(_short(lines[-1]), False if len(lines) < 200 else None)


def _summaries(result: str) -> list[str]:
    """Return the lines that summarize a run, in order. Of adjacent summaries, only the telling one stays."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(_lines(result)):
        bare = _undecorated(line)
        if len(bare) > 300 or _DETAIL.match(line) or not _SUMMARY.search(bare) or not bare:
            continue
        if found and number - found[-1][0] <= 2 and not _separate(found[-1][1], bare):
            found[-1] = (number, _more_telling(found[-1][1], bare))
        else:
            found.append((number, bare))
    strong = [line for _, line in found if _STRONG.search(line)]
    return strong or [line for _, line in found]


def _separate(first: str, second: str) -> bool:
    """Return whether two adjacent summary lines come from two commands: both state a total of the same kind."""
    return bool(_COMPLETE.search(first) and _COMPLETE.search(second))


_COMPLETE: Final = re.compile(
    r"\bin \d[\d.,]*\s?m?s\b|\bchecked \d+|\bAll checks passed|\bSuccess: no issues|\bFound \d+ errors?\b",
    re.IGNORECASE,
)


def _more_telling(first: str, second: str) -> str:
    def score(line: str) -> tuple[bool, bool, bool, int]:
        return (
            _is_bad(line),
            bool(re.search(r"\btests?\b|passed|failed|examples", line, re.I)),
            len(line.split()) > 1,
            len(re.findall(r"\d+\s+[a-z]+", line)),
        )

    if re.fullmatch(r"(?:OK|FAILED.*|PASSED)", second) and not _is_bad(first):
        return f"{second}, {first}" if first.startswith("Ran ") else second
    return second if score(second) >= score(first) else first


def _is_bad(line: str) -> bool:
    return bool(_BAD_COUNT.search(line) or _BAD.search(line))


def _short(line: str) -> str:
    return shorten(_undecorated(line), RESULT_CHARS)


def _undecorated(line: str) -> str:
    return _DECORATION.sub("", line).strip()


def _lines(text: str) -> list[str]:
    return list(_nonblank(text))


def _nonblank(text: str) -> Iterator[str]:
    lines = clean_output(text).split("\n")
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES // 4], *lines[-MAX_LINES * 3 // 4 :]]
    for line in lines:
        if line.strip():
            yield line[:2_000].rstrip()
