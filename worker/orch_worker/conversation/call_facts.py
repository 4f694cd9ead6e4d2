"""The facts that one tool call and its result state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from posixpath import basename
from typing import Any, Final

from msgspec import Struct, field

from .records import outcomes
from .records.announcements import deviation
from .records.call_arguments import CONTENT_KEYS, OLD_AND_NEW, PATCH_KEYS, command_of, paths_in
from .records.constants import constants_in
from .records.constraints import constraints_in
from .records.effects import commits_of, effects_of, is_commit, job_id, job_over
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
    SeenFile,
    Specification,
    UserWords,
)
from .records.paths import changed_by, looks_like_file, read_by
from .records.prose import cut_at_sentence, flat, shorten
from .records.shell import Step, steps_of
from .subagent_calls import TOOLS as SUBAGENT_TOOLS
from .turns import CallWithResult

__all__ = ["CallFacts", "Job", "facts_of_call"]

LINE_CHARS: Final = 120
ARGUMENTS_CHARS: Final = 120
WORDS_CHARS: Final = 300
NAME_CHARS: Final = 90

_OLD_KEYS: Final = tuple(old for old, _ in OLD_AND_NEW)
_NEW_KEYS: Final = tuple(dict.fromkeys([*(new for _, new in OLD_AND_NEW), *CONTENT_KEYS]))
_CHANGES: Final = re.compile(
    r"write|edit|replace|create|patch|append|insert|move|rename|delete|remove|update|save", re.I
)
_REMOVES: Final = re.compile(r"delete|remove|unlink", re.I)
_READS: Final = re.compile(
    r"^(?:\w+__)*(?:get|list|search|find|read|view|show|fetch|grep|glob|ls|look|query|cat|open|think|todo|task|plan|wait|sleep|check_|recall|describe)",
    re.I,
)
_ASKS: Final = re.compile(
    r"ask_?(?:user|human|question|followup)|(?:user|human)_?(?:question|input)|request_user", re.I
)
_ANSWERED: Final = re.compile(
    r"\A(?:The )?[Uu]ser (?:has )?answered (?:your )?questions?:\s*|\s*You can now continue\b.*\Z"
)
_WEB: Final = re.compile(r"fetch|web|browse|url|http", re.I)
_PATCHED: Final = re.compile(
    r"^\*\*\* (Add|Update|Delete) File: (.+?)\s*$|^\*\*\* Move to: (.+?)\s*$|^\+\+\+ (?:b/)?(\S+)", re.MULTILINE
)
_CREATED: Final = re.compile(r"\b(?:created|new file)\b", re.I)
_REFUSED: Final = re.compile(
    r"\A\W*(?:The user doesn't want to (?:proceed|take this action)|"
    r"(?:The )?[Uu]ser (?:has )?(?:rejected|denied|declined|refused|cancelled|doesn't want|did not approve)|"
    r"(?:Tool (?:use|call|execution) )?(?:was )?(?:rejected|denied|declined|refused) by (?:the )?user|"
    r"Permission (?:to use \S+ )?(?:has been )?denied by (?:the )?user|Denied: (?P<tool>\S+) was not run"
    r"|The plan was not approved)"
)
_USER_SAID: Final = re.compile(
    r"(?:the user said|user (?:said|feedback|provided the following reason)|with (?:the )?(?:reason|feedback"
    r"|message)|reason|feedback|was not run|"
    r"not approved)[^:\n]{0,60}:\s*(.*)",
    re.DOTALL | re.IGNORECASE,
)
_AFTER_REFUSAL: Final = re.compile(r"[^:.(\n]{0,40}:\s*(.*)", re.DOTALL)
"""The words after a refusal, such as "The user rejected this call: Use the other tool."."""
_AFTER_REASON: Final = re.compile(
    r"\s*(?:\. )?(?:Stop and ask what to do instead|Do not look for another way|Do not submit the plan"
    r"|Plan mode continues|STOP what you are doing|"
    r"Note: The user's next message)\b.*",
    re.DOTALL,
)
_STOPPED: Final = re.compile(
    r"\A\W*(?:No result: it was interrupted|\(?(?:Command |Request |Operation |Tool )?(?:aborted|interrupted"
    r"|cancelled)|Interrupted: |"
    r"\[Request interrupted by user|Withheld: |Dry run: )",
    re.I,
)
_RUNS_IN_BACKGROUND: Final = re.compile(r"\bin (?:the )?background\b", re.I)
_TRACKER: Final = re.compile(
    r"^(?:(?:bd|br|beads|tk|ticket|jira|linear|tea|hub|az|acli|clickup|trello)\s+(?:\w+\s+)?(?:show|view|get|describe|issue)|(?:gh|glab)\s+(?:issue|pr|mr)\s+view)\b"
)
_TRACKER_TOOL: Final = re.compile(
    r"(?:get|read|fetch|show|view)_?(?:issue|ticket|task|story|card|pull_request|pr|page|doc|spec|requirement)s?$", re.I
)
_CURL: Final = re.compile(r"^(?:curl|wget|http|https|xh)\b.*?(https?://[^\s'\"|;&>]+)", re.DOTALL)
_DOCUMENT: Final = re.compile(r"\.(?:md|mdx|rst|adoc|txt|pdf|org|feature|docx?)$", re.I)
_SPEC_NAME: Final = re.compile(
    r"spec|design|plan|requirement|issue|task|ticket|todo|roadmap|rfc|proposal|brief|prd|adr|story|refactor|architecture|contract|protocol|"
    r"agents\.md|readme|contributing|guide|instruction",
    re.I,
)
_HEADING: Final = re.compile(r"[○◐●✓☐☑#*=\s]*(.+)")
_SKIPS_HOOK: Final = re.compile(r"\s(?:--no-verify|-[a-m]*n[a-z]*)(?=\s|$)|\bHUSKY=0\b|\bSKIP=")
_KILLS: Final = re.compile(r"kill|stop|terminate", re.I)
_KILLED: Final = re.compile(r"\bp?kill(?:all)?\s+(?:-\S+\s+)*['\"]?([\w./-][\w./ -]{2,40})")
_URL: Final = re.compile(r"https?://\S+")


class CallFacts(Struct):
    """The facts of one call. `passed` contains the keys of failures that this call resolves."""

    files: list[ChangedFile] = field(default_factory=list)
    seen: list[SeenFile] = field(default_factory=list)
    commands: list[CommandOutcome] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)
    commits: list[Commit] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    words: list[UserWords] = field(default_factory=list)
    specifications: list[Specification] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)


class Job(Struct, frozen=True):
    """A background job: the key of its effect, and its commands."""

    key: str
    steps: Sequence[Step]


def facts_of_call(
    call: CallWithResult, prose: str, called: Place, answered: Place, *, documents: dict[str, str], jobs: dict[str, Job]
) -> CallFacts:
    """Return the facts of `call`. `prose` is the agent's text before it.

    `called` and `answered` are the places of the call and of its result. `documents` collects the texts of written
    files, and `jobs` the background jobs by their ids.
    """
    facts = CallFacts()
    input = call.input if isinstance(call.input, dict) else {}
    result = call.result or ""
    if refusal := _refusal(result):
        facts.words.append(UserWords(refusal, _shown_call(call.name, input), answered))
        return facts
    if _ASKS.search(call.name) and result.strip() and not call.is_error:
        answer = _ANSWERED.sub("", flat(result))
        facts.words.append(UserWords(cut_at_sentence(answer, WORDS_CHARS), place=answered))
        return facts
    _end_jobs(facts, call, input, result, answered, jobs)
    command = command_of(input)
    if command:
        _add_command(facts, call, command, called, answered, documents, jobs)
    elif paths := paths_in(input):
        _add_files(facts, call, input, paths, prose, called, answered, documents)
    elif patched := _patched_files(input):
        if call.is_error:
            _add_failure(
                facts, call, f"{EDIT_KEY}{patched[0].path}", f"{call.name} {basename(patched[0].path)}", answered
            )
        else:
            facts.files += [ChangedFile(file.path, called, file.created, file.removed) for file in patched]
            facts.passed |= {f"{EDIT_KEY}{file.path}" for file in patched}
    else:
        _add_other(facts, call, input, result, answered)
    return facts


def _add_command(
    facts: CallFacts,
    call: CallWithResult,
    command: str,
    called: Place,
    answered: Place,
    documents: dict[str, str],
    jobs: dict[str, Job],
) -> None:
    steps = steps_of(command)
    output = call.result or ""
    code = outcomes.exit_code_in(output) if output else None
    failed = call.is_error or bool(code)
    stopped = failed and bool(_STOPPED.match(output))
    background = _is_background(call, steps)
    if background and not failed:
        _add_job(facts, call, steps, command, jobs)
    for step in steps:
        if step.document and step.targets:
            documents[step.targets[0]] = step.document
    verdicts = {} if background or stopped else outcomes.verdicts(steps, output, failed=failed)
    commits = commits_of(steps, output, failed=failed, documents=documents)
    checks = outcomes.checks_named(output) if commits else ()
    skips = any(is_commit(step) and _SKIPS_HOOK.search(step.text) for step in steps)
    facts.commits += [Commit(each.subject, each.hash, each.rejected, answered, checks, skips) for each in commits]
    _add_verdicts(facts, steps, verdicts, code, answered, output, failures=not commits)
    # In a chain that failed at a known command, the commands before it succeeded.
    failed_at = next((index for index, verdict in verdicts.items() if verdict.failed), 0)
    listed = set(range(len(steps))) if background else set(verdicts)
    for index, step in enumerate(steps):
        succeeded = not failed or index < failed_at or ";" in {each.joint for each in steps[index + 1 :]}
        if succeeded and not stopped:
            facts.files += [
                ChangedFile(file.path, Place() if is_commit(step) else called, file.created, file.removed, file.before)
                for file in changed_by(step, output if len(steps) == 1 or is_commit(step) else "")
            ]
            effects = list(effects_of(step, output))
            facts.effects += effects
            listed |= {index} if effects else set()
        facts.seen += [SeenFile(path) for path in read_by(step)]
        if _TRACKER.match(step.text) or _CURL.match(step.text):
            fetched = list(_fetched(step, output, answered, failed=failed))
            facts.specifications += fetched
            listed |= {index} if fetched else set()
    if not failed:
        facts.files += [
            ChangedFile(file.path, called, file.created, file.removed) for file in _patched_files({"patch": command})
        ]
    _add_plain_commands(facts, call, steps, listed, code, answered, failed=failed)
    key = _failure_key(steps, command)
    if not failed:
        facts.passed.add(key)
        if any(commit.hash for commit in commits):
            facts.passed.add("git add")
    elif (
        not stopped and not any(verdict.failed for verdict in verdicts.values()) and not _is_empty_search(steps, output)
    ):
        if commits:
            return  # the list of commits states the reason
        _add_failure(facts, call, key, shorten(_shown_steps(steps) or command, LINE_CHARS), answered)


def _add_verdicts(
    facts: CallFacts,
    steps: Sequence[Step],
    verdicts: dict[int, outcomes.Verdict],
    code: int | None,
    answered: Place,
    output: str,
    *,
    failures: bool = True,
) -> None:
    for index, verdict in verdicts.items():
        line = shorten(steps[index].text, LINE_CHARS)
        key = outcomes.check_key(line)
        result = outcomes.with_reason(verdict.line, output) if verdict.failed else verdict.line
        if verdict.failed is not None:
            known_code = code if verdict.failed else None
            facts.commands.append(CommandOutcome(line, known_code, verdict.failed, result, True, answered))
        if verdict.failed and failures:
            facts.failures.append(Failure(key, line, result or "failed", answered))
        elif verdict.failed is False:
            facts.passed.add(key)


def _add_plain_commands(
    facts: CallFacts,
    call: CallWithResult,
    steps: Sequence[Step],
    listed: set[int],
    code: int | None,
    answered: Place,
    *,
    failed: bool,
) -> None:
    """Add the commands that do not only read. The commands at the positions `listed` are listed elsewhere."""
    plain = [
        step
        for index, step in enumerate(steps)
        if index not in listed and step.joint != "|" and not outcomes.is_reading(step) and step.words[:1] != ["git"]
    ]
    for step in plain:
        last = step is steps[-1] or len(plain) == 1
        result = ""
        if len(plain) == 1 and not listed and outcomes.has_result(call.result or ""):
            verdict = outcomes.result_verdict(call.result or "", failed=failed)
            result, failed = verdict.line, bool(verdict.failed)
        facts.commands.append(
            CommandOutcome(
                shorten(step.text, LINE_CHARS),
                code if last else None,
                failed and last,
                result,
                bool(result),
                answered,
            )
        )


def _add_files(
    facts: CallFacts,
    call: CallWithResult,
    input: dict[str, Any],
    paths: Sequence[str],
    prose: str,
    called: Place,
    answered: Place,
    documents: dict[str, str],
) -> None:
    changes = bool(_CHANGES.search(call.name)) and input.get("command") != "view"
    shown = f"{call.name} {basename(paths[0].rstrip('/'))}"
    key = f"{EDIT_KEY}{paths[0]}" if changes else f"{call.name} {paths[0]}"
    if call.is_error:
        if not _STOPPED.match(call.result or ""):
            _add_failure(facts, call, key, shown, answered)
        return
    facts.passed |= {f"{EDIT_KEY}{path}" for path in paths} if changes else {key}
    if changes:
        new, old = _texts(input, _NEW_KEYS), _texts(input, _OLD_KEYS)
        created = bool(_CREATED.search((call.result or "")[:200])) or input.get("command") == "create"
        removed = bool(_REMOVES.search(call.name)) and not new
        facts.files += [ChangedFile(path, called, created, removed) for path in paths]
        if isinstance(content := input.get("content", input.get("file_text")), str):
            documents[paths[0]] = content[:2_000]
        facts.constants += [Constant(*each, paths[0]) for each in constants_in(new, old)]
        if found := deviation(prose, old, new):
            facts.deviations.append(Deviation(*found, basename(paths[0]), called))
        return
    partial = any(
        input.get(name) for name in ("offset", "limit", "first", "start_line", "view_range", "pattern", "lines")
    )
    for path in paths:
        if looks_like_file(path):
            facts.seen.append(SeenFile(path, 1 if partial else 2))
        if _DOCUMENT.search(path) and _SPEC_NAME.search(path) and "pattern" not in input:
            facts.specifications.append(Specification(path, answered, constraints_in(call.result or "")))


def _add_other(facts: CallFacts, call: CallWithResult, input: dict[str, Any], result: str, answered: Place) -> None:
    url = next((value for value in input.values() if isinstance(value, str) and _URL.match(value)), "")
    key = f"{call.name} {json.dumps(input, sort_keys=True, default=str)[:200]}"
    if call.is_error:
        if not _STOPPED.match(result):
            _add_failure(facts, call, key, _shown_call(call.name, input), answered)
        return
    facts.passed.add(key)
    if url and _WEB.search(call.name):
        facts.specifications.append(Specification(shorten(url, NAME_CHARS), answered, constraints_in(result)))
    elif _TRACKER_TOOL.search(call.name):
        name = _title(result) or _shown_call(call.name, input)
        facts.specifications.append(Specification(name, answered, constraints_in(result)))
    elif not _READS.match(call.name) and call.name not in SUBAGENT_TOOLS and call.completed:
        code = input.get("code")
        shown = shorten(f"{call.name}: {code}", LINE_CHARS) if isinstance(code, str) else _shown_call(call.name, input)
        facts.commands.append(CommandOutcome(shown, place=answered))


def _add_failure(facts: CallFacts, call: CallWithResult, key: str, shown: str, answered: Place) -> None:
    facts.failures.append(Failure(key, shown, outcomes.failure_line(call.result or ""), answered))


def _add_job(facts: CallFacts, call: CallWithResult, steps: Sequence[Step], command: str, jobs: dict[str, Job]) -> None:
    own = next((step for step in steps if step.background), None)
    shown = shorten(own.text if own else _shown_steps(steps) or command, LINE_CHARS)
    id = job_id(call.result or "")
    key = f"job {id or shown}"
    facts.effects.append(Effect(key, f"job left running: {shown}{f' (id {id})' if id else ''}"))
    jobs[id or shown] = Job(key, steps)


def _end_jobs(
    facts: CallFacts,
    call: CallWithResult,
    input: dict[str, Any],
    result: str,
    answered: Place,
    jobs: dict[str, Job],
) -> None:
    """End the jobs that this call ended or reports as ended. The result of a verifying job is in the report."""
    if not jobs:
        return
    values = [str(value) for value in input.values() if isinstance(value, (str, int))]
    killed = [name for value in values for name in _KILLED.findall(value) if not name.isdigit()]
    for id, job in list(jobs.items()):
        named = [value for value in values if re.search(rf"(?<![\w-]){re.escape(id)}(?![\w-])", value)]
        is_killed = any(name in job.key for name in killed) or (
            bool(named) and any(map(_KILLS.search, (call.name, *named)))
        )
        if is_killed or (named and job_over(result)):
            del jobs[id]
            facts.effects.append(Effect(job.key, "", over=True))
            if not is_killed:
                code = outcomes.exit_code_in(result)
                verdicts = outcomes.verdicts(job.steps, result, failed=bool(code))
                _add_verdicts(facts, job.steps, verdicts, code, answered, result)


def _is_background(call: CallWithResult, steps: Sequence[Step]) -> bool:
    input = call.input
    if any(input.get(name) is True for name in ("run_in_background", "background", "is_background", "detach")):
        return True
    result = (call.result or "")[:300]
    if _RUNS_IN_BACKGROUND.search(result) and job_id(result):
        return True
    waits = any(step.words[:1] == ["wait"] for step in steps)
    return any(step.background for step in steps) and not waits


def _failure_key(steps: Sequence[Step], command: str) -> str:
    """Return the key of a command: the same command with other pipes and redirections has the same key."""
    if any(is_commit(step) for step in steps):
        return "git commit"
    for name in ("git push", "git add"):
        if any(step.text.startswith(name) for step in steps):
            return name
    return _shown_steps(steps)[:300] or command[:300]


def _shown_steps(steps: Sequence[Step]) -> str:
    return " && ".join(step.text for step in steps if step.joint != "|")


def _is_empty_search(steps: Sequence[Step], output: str) -> bool:
    """Return whether the command is a search that found nothing: such commands end with the exit code 1."""
    rest = re.sub(r"(?i)\(no output\)|(?:command )?exit(?:ed)?(?: with)?(?: code)?:?\s*1\b|[\[\]]", "", output).strip()
    if not all(outcomes.is_reading(step) for step in steps):
        return False
    return not rest or (outcomes.exit_code_in(output) == 1 and any(outcomes.is_search(step) for step in steps))


def _refusal(result: str) -> str:
    """Return the words of the refusal if the user or a rule refused the call, otherwise ""."""
    refused = _REFUSED.match(result[:200])
    if refused is None:
        return ""
    reason = _USER_SAID.search(result) or _AFTER_REFUSAL.match(result, refused.end())
    words = _AFTER_REASON.sub("", reason[1]) if reason else ""
    return cut_at_sentence(flat(words).strip(" .]"), WORDS_CHARS) or "no reason given"


def _patched_files(input: dict[str, Any]) -> list[ChangedFile]:
    text = next(
        (
            input[key]
            for key in PATCH_KEYS
            if (isinstance(input.get(key), str) and "*** " in input[key])
            or (isinstance(input.get(key), str) and "\n+++ " in input[key])
        ),
        "",
    )
    files: list[ChangedFile] = []
    for kind, path, target, plain in _PATCHED.findall(text):
        if target and files:
            files[-1] = ChangedFile(target, before=files[-1].path)
        elif path or plain:
            files.append(ChangedFile(path or plain, created=kind == "Add", removed=kind == "Delete"))
    return [file for file in files if file.path != "/dev/null"]


def _texts(input: dict[str, Any], keys: Sequence[str]) -> str:
    parts = [input[key] for key in keys if isinstance(input.get(key), str)]
    edits = input.get("edits")
    if isinstance(edits, (list, tuple)):
        parts += [
            edit[key] for edit in edits if isinstance(edit, dict) for key in keys if isinstance(edit.get(key), str)
        ]
    return "\n".join(parts)


def _shown_call(name: str, input: dict[str, Any]) -> str:
    """Return a call as text: the tool and its arguments."""
    command = command_of(input)
    if command:
        return f"{name}({shorten(command, ARGUMENTS_CHARS)})"
    shown = [
        f"{key}={shorten(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False), 60)}"
        for key, value in input.items()
        if key != "description"
    ]
    return f"{name}({shorten(', '.join(shown), ARGUMENTS_CHARS)})"


def _fetched(step: Step, output: str, place: Place, *, failed: bool) -> Iterator[Specification]:
    if failed:
        return
    if match := _CURL.match(step.text):
        if not re.search(
            r"localhost|127\.0\.0\.1|0\.0\.0\.0|\s-X\s|--data|\s-d\s|\.(?:sh|tar|gz|zip|tgz)\b", step.text
        ):
            yield Specification(shorten(match[1], NAME_CHARS), place, constraints_in(output))
    else:
        yield Specification(_title(output) or shorten(step.text, NAME_CHARS), place, constraints_in(output))


def _title(output: str) -> str:
    """Return the first line of `output` that has words, without marks."""
    for line in output[:2_000].split("\n"):
        if re.search(r"\w{3,}", line) and not line.startswith(("Exit code", "http")):
            match = _HEADING.match(re.sub(r"\s{2,}\[.*$|\s+\[[●○].*$", "", line))
            return shorten(match[1], NAME_CHARS) if match else ""
    return ""
