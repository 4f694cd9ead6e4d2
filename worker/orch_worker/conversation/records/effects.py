"""Commits and other lasting effects of shell commands: pushes, branches, tags, installations, migrations, jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .facts import Commit, Effect
from .outcomes import clean_output, failure_line
from .prose import flat, shorten
from .shell import Step

__all__ = ["commits_of", "effects_of", "is_commit", "job_id", "job_over"]

SUBJECT_CHARS: Final = 100
REJECTED_CHARS: Final = 160
COMMAND_CHARS: Final = 100

_MADE: Final = re.compile(
    r"^\s*\[(?:detached HEAD|[^\]\s]+)(?: \(root-commit\))? ([0-9a-f]{7,40})\] (.*)$", re.MULTILINE
)
_NOTHING: Final = re.compile(r"nothing (?:added )?to commit|no changes added to commit|nothing to commit")
_FINDING: Final = re.compile(
    r"^\W*(?:\[[A-Z]{1,8}\]|[\w./-]+\.\w+:\d+(?::\d+)?:?|error(?:\[\w+\])?:|ERROR|FAILED|Total errors: [1-9])",
    re.MULTILINE,
)
_TAG: Final = re.compile(r"\[\w+\]")
_PUSHED: Final = re.compile(
    r"^\s*(?:\+ |\* |- |= |! )?\s*(?:[0-9a-f]{6,40}\.{2,3}[0-9a-f]{6,40}|\[(?:new branch|new tag|deleted"
    r"|up to date)\])\s+(\S+(?:\s+->\s+\S+)?)",
    re.MULTILINE,
)
_INSTALL: Final = re.compile(
    r"^(?:sudo\s+)?(?:(?:pip3?|pipx|python3?\s+-m\s+pip|uv(?:\s+pip)?|poetry|pdm|conda|mamba|npm|pnpm|yarn|bun|deno|apt|apt-get|dnf|yum|"
    r"pacman|apk|brew|cargo|gem|bundle|go|composer|dotnet|nix-env|rustup|mix|dart\s+pub|flutter\s+pub|swift\s+package|cpan|luarocks|hex|"
    r"helm|choco|winget|snap|flatpak)\s+(?:-\S+\s+)*(?:install|add|get|i|ci|deps\.get|require|-S|remove|uninstall|rm)\b.*"
    r"|dotnet\s+add\s+.*package\s.*|npx\s+\S+\s+add\s.*)",
    re.DOTALL,
)
_NOT_INSTALL: Final = re.compile(r"\bgo\s+(?:install|get)\s+\./|\binstall\s+--dry-run|--help\b")
_MIGRATION: Final = re.compile(
    r"\b(?:migrate(?!d)(?::\w+)*|migrations?\s+(?:run|apply|up|deploy)|db:(?:migrate|rollback|schema:load|seed|reset|create|drop)|"
    r"ecto\.(?:migrate|rollback|create|drop|reset)|ash\.migrate|alembic\s+(?:upgrade|downgrade)|flyway\s+migrate|liquibase\s+update|"
    r"database\s+update|db\s+push|prisma\s+db|sqlx\s+migrate|diesel\s+migration|goose\s+(?:up|down)|dbmate\s+(?:up|down)|knex\s+migrate|"
    r"db\s+upgrade|schema:update)"
)
_MIGRATED: Final = re.compile(
    r"(?:== Running (\d+ \S+)|== (\d+ \w+): migrated|Applying (\S+?)\.\.\. OK|Running upgrade \S* -> (\S+)"
    r"|(?:Applied|Migrated) (\d{6,}\S*))"
)
_JOB_ID: Final = re.compile(
    r"\b(?:(?:in (?:the )?)?background|job|task|shell|process|started)\b[^\n]{0,60}?\b(?:ID|id|Id|pid"
    r"|PID)\b\s*[:=]?\s*[\"'`]?([\w-]{2,40})"
    r"|^\[\d+\]\s+(\d{2,8})$|^Started (\w+_\d+)\.",
    re.MULTILINE,
)
_OVER: Final = re.compile(
    r"<status>\s*(?:completed|failed|killed|stopped|cancelled)|\"status\":\s*\"(?:completed|failed|killed|exited)"
    r"|\b(?:background command|command|job|process|task|shell|\w+_\d+)\b[^\n]{0,80}?"
    r"\b(?:completed|exited|ended|terminated|killed|stopped|finished|not running)\b|\bexit code",
    re.IGNORECASE,
)
_DETACHED: Final = re.compile(
    r"\b(?:docker|podman)(?:[- ]compose)?\s+(?:run|up|start)\b.*?(?:\s-d\b|--detach|\sstart\b)|\bdisown\b"
    r"|\bsystemctl\s+(?:start|enable|restart)\b|\btmux\s+new(?:-session)?\b.*\s-d\b|\bscreen\s+-dm"
)
_GIT_STATE: Final = frozenset(("merge", "rebase", "cherry-pick", "revert", "reset", "stash", "restore", "am", "pull"))


def is_commit(step: Step) -> bool:
    """Return whether the command makes a commit."""
    words = [word for word in step.words if not word.startswith("-")]
    return words[:1] == ["git"] and "commit" in words[1:4] and "--dry-run" not in step.words


def commits_of(steps: Sequence[Step], output: str, *, failed: bool, documents: dict[str, str]) -> list[Commit]:
    """Return the commits that `steps` made or tried to make, with the subjects that git or the command states.

    `documents` contains the texts of files that may hold a message for `-F`.
    """
    wanted = [step for step in steps if is_commit(step)]
    if not wanted:
        return []
    output = clean_output(output)
    made = list(_MADE.finditer(output))
    commits = []
    for number, step in enumerate(wanted):
        if number < len(made):
            commits.append(Commit(shorten(made[number][2], SUBJECT_CHARS), made[number][1][:10]))
        elif _NOTHING.search(output):
            continue
        elif failed:
            commits.append(Commit(_subject(step, documents), rejected=_rejection(output)))
        elif not output.strip() or "-q" in step.words or "--quiet" in step.words:
            commits.append(Commit(_subject(step, documents)))
        elif re.search(
            r"^(?:error|fatal|hint|husky|lint-staged|.*(?:hook|validation) (?:failed|declined))", output, re.M | re.I
        ):
            commits.append(Commit(_subject(step, documents), rejected=_rejection(output)))
        else:  # the output was cut or filtered, for example by a pipe
            commits.append(Commit(_subject(step, documents)))
    return commits


def effects_of(step: Step, output: str) -> Iterator[Effect]:
    """Yield the lasting effects of a successful command: pushes, branches, tags, installations and migrations."""
    if step.joint == "|":
        return
    text = shorten(step.text, COMMAND_CHARS)
    words = step.words
    arguments = [word for word in words[1:] if not word.startswith("-")]
    if words[:1] == ["git"] and arguments:
        yield from _git_effects(words, arguments, text, output)
    elif _INSTALL.match(step.text) and not _NOT_INSTALL.search(step.text):
        yield Effect(
            f"install {text}", f"installed: {text}" if not re.search(r"\b(?:remove|uninstall|rm)\b", text) else text
        )
    elif (
        _MIGRATION.search(step.text)
        and "--check" not in step.text
        and words[0] not in ("cat", "grep", "rg", "ls", "echo", "sed", "find", "git")
    ):
        names = [next(filter(None, match)) for match in _MIGRATED.findall(output)]
        yield Effect(f"migrate {text}", f"migrated: {text}{f' ({shorten(chr(44).join(names), 120)})' if names else ''}")
    elif _DETACHED.search(step.text):
        yield Effect(f"service {text}", f"left running: {text}")
    elif words[:1] == ["export"]:
        for word in arguments:
            name, equals, _ = word.partition("=")
            if equals:
                yield Effect(f"set {name}", f"set {name}")
    elif re.match(r"(?:gh|glab)\s+(?:pr|mr|issue|release)\s+(?:create|merge|close|comment|edit|review)\b", step.text):
        link = re.search(r"https?://\S+", output)
        yield Effect(text, f"{' '.join(words[:3])}{f': {link[0]}' if link else ''}")


def job_id(output: str) -> str:
    """Return the id of the background job that `output` names, or ""."""
    match = _JOB_ID.search(output[:2_000])
    return (match[1] or match[2] or match[3]) if match else ""


def job_over(text: str) -> bool:
    """Return whether `text`, a result or a notification about a job, says that the job has ended."""
    return bool(_OVER.search(text[:2_000]) or _OVER.search(text[-500:]))


def _git_effects(words: Sequence[str], arguments: Sequence[str], text: str, output: str) -> Iterator[Effect]:
    verb, rest = arguments[0], arguments[1:]
    if verb == "push" and "--dry-run" not in words:
        if "Everything up-to-date" in output:
            return
        refs = [flat(match[1]) for match in _PUSHED.finditer(output) if "[deleted]" not in match[0]]
        deleted = [flat(match[1]) for match in _PUSHED.finditer(output) if "[deleted]" in match[0]]
        done = [f"pushed {', '.join(refs)}"] * bool(refs) + [f"deleted {', '.join(deleted)}"] * bool(deleted)
        yield Effect(f"push {' '.join(rest)}", ", ".join(done) or f"pushed ({text})")
    elif verb == "tag" and rest and not {"-l", "--list"} & set(words):
        yield Effect(f"tag {rest[0]}", f"deleted tag {rest[0]}" if "-d" in words else f"tag {rest[0]}")
    elif verb in ("checkout", "switch") and ({"-b", "-B", "-c", "-C", "--create"} & set(words)) and rest:
        yield Effect("branch", f"on new branch {rest[0]}")
    elif (
        verb in ("checkout", "switch")
        and len(rest) == 1
        and "--" not in words
        and "/" not in rest[0].strip("/").replace("origin/", "")
        and "." not in rest[0]
    ):
        yield Effect("branch", f"on branch {rest[0]}")
    elif (
        verb == "branch"
        and rest
        and not {"-a", "-r", "--list", "-v", "-vv", "--show-current", "--contains"} & set(words)
    ):
        gone = {"-d", "-D", "--delete"} & set(words)
        yield Effect(f"branch {rest[0]}", f"{'deleted ' if gone else ''}branch {' '.join(rest)}")
    elif verb == "worktree" and rest[:1] and rest[0] in ("add", "remove"):
        yield Effect(f"worktree {' '.join(rest[1:2])}", text)
    elif verb == "checkout" or verb in _GIT_STATE:
        if (verb == "stash" and rest[:1] in (["list"], ["show"])) or (verb == "pull" and "up to date" in output):
            return
        yield Effect(text, text)


def _subject(step: Step, documents: dict[str, str]) -> str:
    """Return the first line of the message in the command: from `-m`, a heredoc or the file of `-F`."""
    if step.document.strip():
        return _subject_in(step.document)
    words = step.words
    for index, word in enumerate(words):
        if word in ("-m", "--message") or re.fullmatch(r"-[a-zA-Z]*m", word):
            if index + 1 < len(words):
                return _subject_in(words[index + 1])
        elif word.startswith(("--message=", "-m")) and not word.startswith("--m "):
            return _subject_in(word.partition("=")[2] if word.startswith("--") else word[2:])
        elif word in ("-F", "--file") or re.fullmatch(r"-[a-zA-Z]*F", word) or word.startswith("--file="):
            name = word.partition("=")[2] or (words[index + 1] if index + 1 < len(words) else "")
            for path, text in documents.items():
                if path == name or path.endswith(f"/{name.lstrip('./')}"):
                    return _subject_in(text)
            return f"(message of {name})"
    return "(amended)" if "--amend" in words else "(no message)"


def _subject_in(message: str) -> str:
    first = next((line for line in message.split("\n") if line.strip()), "")
    return shorten(first, SUBJECT_CHARS) or "(no message)"


def _rejection(output: str) -> str:
    """Return why git made no commit: the first findings of the hook, or its error."""
    findings = [
        line for line in map(_undecorated, output.split("\n")) if _FINDING.match(line) and not _TAG.fullmatch(line)
    ]
    first = failure_line(output)
    chosen = list(dict.fromkeys(shorten(line, 90) for line in findings if line[:40] != first[:40]))[:2]
    joint = " " if first.endswith(":") else "; "
    return shorten(joint.join(filter(None, [first, "; ".join(chosen)])), REJECTED_CHARS)


def _undecorated(line: str) -> str:
    return re.sub(r"^[^\w\[./-]+", "", flat(line))
