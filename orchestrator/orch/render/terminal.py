"""Tables and pages for people. Text that came from a model or a file never reaches a terminal as it is."""

from __future__ import annotations

import json
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

__all__ = [
    "activity_line",
    "age",
    "agent_page",
    "agent_table",
    "agent_tree",
    "budget",
    "count",
    "format_columns",
    "fullness",
    "message",
    "pluralize",
    "safe",
    "safe_for_stdout",
    "status",
    "supports_unicode",
    "task_lines",
    "to_json",
    "truncate_line",
]

# What moves the cursor, colours, rings, or turns the direction of reading, but for tab and newline.
CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
HEAD = ("#", "ID", "RUN", "NAME", "STATUS", "AGE", "CONTEXT", "TOKENS", "COST", "BUDGET", "")
RIGHT = frozenset({"#", "AGE", "CONTEXT", "TOKENS", "COST", "BUDGET"})
OPTIONAL = frozenset({"RUN", "BUDGET"})
"""Columns that are left out if no agent has a value for them."""
WIDTH = 60
HOLDER = "(archive)"
FULL = ((95, "nearly full"), (90, "high"), (75, "getting full"))
"""From which share of its model's window on a conversation is called what."""


def to_json(value: object) -> str:
    """Return `value` as one line of JSON that every terminal and file can carry."""
    return json.dumps(value, separators=(",", ":"))


def safe(text: str) -> str:
    """Return `text` with control characters written out."""
    if text.isprintable():  # nearly always, and compiling the expression takes as long as connecting
        return text
    return re.sub(CONTROL, lambda found: found[0].encode("unicode_escape").decode(), text)


def safe_for_stdout(text: str) -> str:
    """Return `text` as stdout should get it: made safe for a terminal, untouched for everything else."""
    return safe(text) if sys.stdout.isatty() else text


def supports_unicode(out: TextIO) -> bool:
    """Say whether what is written to `out` may have the characters that tables and lists are drawn with."""
    return (out.encoding or "").lower().replace("-", "") == "utf8"


def truncate_line(text: str, width: int = WIDTH) -> str:
    """Return the head of `text` on one line."""
    flat = safe(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def agent_table(rows: list[dict[str, Any]], now: float | None = None) -> str:
    """Return agents as a table, one a line."""
    return _agents([_cells(row, "", row["usage"], now) for row in rows])


def agent_tree(rows: list[dict[str, Any]], now: float | None = None) -> str:
    """Return agents below their parents; tokens and cost are those of the whole branch."""
    known = {row["id"] for row in rows}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        children.setdefault(row["parent_id"] if row["parent_id"] in known else None, []).append(row)
    cells: list[list[str]] = []

    def add(row: dict[str, Any], lead: str, below: str) -> None:
        cells.append(_cells(row, lead, row["tree_usage"], now))
        under = children.get(row["id"], [])
        for child in under:
            last = child is under[-1]
            add(child, below + ("└ " if last else "├ "), below + ("  " if last else "│ "))

    for row in children.get(None, []):
        add(row, "", "")
    return _agents(cells)


def agent_page(shown: dict[str, Any], now: float | None = None) -> str:
    """Return one agent as a page: what it is, then the end of its conversation."""
    row = shown["agent"]
    facts = {
        "task": safe(row["task"]),
        "status": status(row) + (f": {safe(row['error'])}" if row.get("error") else ""),
        "doing": truncate_line(row["pending"]) if row["pending"] else "",
        "plan mode": "until its plan is approved" if row.get("planning") else "",
        "model": safe(row["model"]),
        "credentials": safe(row.get("credentials", "")),
        "tools": " ".join([f"{row['preset']}:" if row["preset"] else "", *row["tools"]]).strip(),
        "sandbox": row.get("sandbox", "").removeprefix("L0"),
        "folder": safe(row["cwd"]),
        "process": str(row["pid"] or ""),
        "parent": row["parent_id"] or "",
        "age": age(row["created_at"], now),
        "context": fullness(row),
        "compacted": pluralize(times, "time") if (times := shown.get("compactions")) else "",
        "queries": str(row["queries"]),
        "usage": f"{_tokens(row['usage'])} tokens, {_cost(row['usage'])}",
        "with children": _branch(row),
        "budget": _budget(row),
        "transcript": safe(row["folder"]),
        "repaired": safe(row.get("repaired", "")),
    }
    for each in shown.get("marks", ()):
        said = facts.get(each["bit"])
        facts[each["bit"]] = f"{said}; {safe(each['by'])}" if said else safe(each["by"]) or "yes"
    archive = shown.get("archive")
    page = [f"{row['seq']}  {HOLDER if archive else safe(row['name'])}  {row['id']}"]
    page += [f"  {name + ':':15}{value}" for name, value in facts.items() if value]
    if archive:
        page += _archive(archive, shown["held"])
        page += ["\nwas asked:"] if shown["messages"] else []
    if tasks := shown.get("tasks"):
        page += ["\ntasks:", *(f"  {each}" for each in task_lines(tasks))]
    page += [f"\n{said['role']}:\n{_lines(said, truncate_line)}" for said in shown["messages"]]
    return "\n".join(page)


def task_lines(tasks: list[dict[str, Any]]) -> list[str]:
    """Return tasks, one a line, with how far each is."""
    from orch_protocol.agent.plan import MARKS

    return [f"{MARKS[each['status']]} {number}. {truncate_line(each['text'])}" for number, each in enumerate(tasks, 1)]


def _archive(archive: dict[str, Any], held: list[dict[str, Any]]) -> list[str]:
    """Return what a holder holds: how much, what stays of it in the conversation, and its first entries."""
    much = ", ".join(
        [
            *(pluralize(archive["messages"], "message"), pluralize(archive["turns"], "turn")),
            *([f"of {pluralize(len(archive['members']), 'archive')}"] if archive["members"] else []),
        ]
    )
    page = [f"\nholds (one {archive['kind']}: {much}; {archive['reason']}):"]
    page += [f"  {each}" for each in safe(archive["record"]).splitlines()]
    page += [f"\nentry {number}, {said['role']}:\n{_lines(said, truncate_line)}" for number, said in enumerate(held, 1)]
    if (left := archive["messages"] - len(held)) > 0:
        page.append(f"\n{left} more: orch archive read {archive['id']} {len(held) + 1}-")
    return page


def activity_line(rows: list[dict[str, Any]], id: str, now: float | None = None) -> str:
    """Return on one line what the agent `id` and those below it do just now, and since when."""
    below, said = {id}, []
    for row in rows:  # parents come before their children
        if row["id"] in below or row["parent_id"] in below:
            below.add(row["id"])
            if row["pending"] is not None:
                doing = truncate_line(row["activity"] or row["status"])
                said.append(f"{safe(row['name'])}: {doing}, {age(row['last_activity'], now)}")
    return "; ".join(said)


def age(since: str, now: float | None = None) -> str:
    """Return how long ago the ISO 8601 time `since` was, in the largest unit that is not nothing."""
    from datetime import datetime

    try:
        seconds = (time.time() if now is None else now) - datetime.fromisoformat(since).timestamp()
    except ValueError:
        return "?"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def count(number: int) -> str:
    """Return `number` in at most five characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            value = number / size
            return f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"
    return str(number)


def pluralize(number: int, noun: str) -> str:
    """Return `number` with `noun`, of which there may be one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def context(row: dict[str, Any]) -> str:
    """Return how full the context is."""
    limit = row["context_limit"]
    return f"{count(row['context_tokens'])}/{count(limit)}" if limit else count(row["context_tokens"])


def fullness(row: dict[str, Any]) -> str:
    """Return how full the context is, which share of it that is, and a word about it when it is much."""
    limit = row["context_limit"]
    share = row["context_tokens"] * 100 // limit if limit else 0
    word = next((f", {word}" for least, word in FULL if share >= least), "")
    return context(row) + (f" ({share} %{word})" if share else "")


def status(row: dict[str, Any]) -> str:
    """Return what the agent is, and how its last query ended where that was no end of its own."""
    outcome = row.get("outcome", "")
    return f"{row['status']}, {outcome}" if outcome not in ("", "done", row["status"]) else str(row["status"])


def _cells(row: dict[str, Any], lead: str, usage: dict[str, Any], now: float | None) -> list[str]:
    doing = f"{row['status']}: {truncate_line(row['pending'])}" if row["pending"] else truncate_line(row["task"])
    # A holder has no name but its id.
    name = lead + (HOLDER if row.get("kind") == "holder" else truncate_line(row["name"], 24))
    return [
        # A number refers to an agent of the daemon's own run.
        *("-" if row.get("run") else str(row["seq"]), row["id"], truncate_line(row.get("run", ""), 24)),
        *(name, status(row), age(row["created_at"], now)),
        *(context(row), _tokens(usage), _cost(usage), _share(row), doing),
    ]


def _agents(cells: list[list[str]]) -> str:
    if not cells:
        return "no agents; start one: orch spawn TASK"
    shown = [at for at, name in enumerate(HEAD) if name not in OPTIONAL or any(each[at] for each in cells)]
    right = frozenset(place for place, at in enumerate(shown) if HEAD[at] in RIGHT)
    return format_columns([[each[at] for at in shown] for each in [HEAD, *cells]], right)


def format_columns(lines: list[list[str]], right: frozenset[int]) -> str:
    """Return `lines` of cells as columns; those whose numbers are in `right` end where the others begin."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(each, widths, strict=True))
        ).rstrip()
        for each in lines
    )


def _tokens(usage: dict[str, Any]) -> str:
    return count(sum(usage[key] for key in usage if key.endswith("_tokens")))


def _cost(usage: dict[str, Any]) -> str:
    unknown = "~" if usage.get("ceiling_usd") else ">="
    return f"{'' if usage.get('cost_known', True) else unknown}${usage['cost_usd']:.4f}"


def _branch(row: dict[str, Any]) -> str:
    usage = row["tree_usage"]
    return f"{_tokens(usage)} tokens, {_cost(usage)}" if usage != row["usage"] else ""


def budget(shown: dict[str, Any]) -> str:
    """Return what all agents together used of each kind, one a line, and of how much."""
    limits, configured = shown["budget"], shown["configured"]
    lines = []
    for kind, spent in shown["spent"].items():
        limit = limits.get(_limit(kind))
        anew = "" if limit == configured.get(_limit(kind)) else ", set anew while it is as configured"
        lines.append([kind, (_of(kind, spent, limit) if limit else _amount(kind, spent)) + anew])
    return format_columns(lines, frozenset())


def _budget(row: dict[str, Any]) -> str:
    return ", ".join(f"{_of(*each)} used" for each in _bounded(row))


def _share(row: dict[str, Any]) -> str:
    """Return how much of the agent's budget is used, of the kind of which that is most."""
    shares = [spent / limit for _, spent, limit in _bounded(row)]
    return f"{min(100, int(100 * max(shares)))} %" if shares else ""


def _bounded(row: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Return what the agent used of each kind that has a limit, and the limit."""
    spent, limits = row.get("spent", {}), row.get("budget", {})
    return [(kind, spent[kind], limits[_limit(kind)]) for kind in spent if _limit(kind) in limits]


def _limit(kind: str) -> str:
    return "max_cost_usd" if kind == "usd" else f"max_{kind}"


def _of(kind: str, spent: float, limit: float) -> str:
    if kind == "usd":
        return f"${spent:.4f} of ${limit:.4f}"
    number = f"{spent:.1f}" if "seconds" in kind else f"{spent:,.0f}"
    return f"{number} of {_amount(kind, limit)}"


def _amount(kind: str, amount: float) -> str:
    if kind == "usd":
        return f"${amount:.4f}"
    if "seconds" in kind:
        return f"{amount:.1f} s" + " of tools" * (kind == "tool_seconds")
    return f"{amount:,.0f} {kind.replace('_', ' ')}"


def message(said: dict[str, Any]) -> str:
    """Return all of a message, as stdout should get it."""
    return _lines(said, str, safe_for_stdout)


def _lines(said: dict[str, Any], brief: Callable[[str], str], made: Callable[[str], str] = safe) -> str:
    """Return a message for a page, with what `brief` leaves of thoughts, calls and results."""
    texts = [_block(block, brief) for block in said["content"]]
    return "\n".join(f"  {each}" for text in texts for each in made(text).splitlines())


def _block(block: dict[str, Any], brief: Callable[[str], str]) -> str:
    kind = block["type"]
    if kind == "text":
        return str(block["text"])
    if kind == "thinking":
        return f"(thinking) {brief(block['thinking'])}"
    if kind == "tool_use":
        return f"-> {block['name']} {brief(json.dumps(block['input'], ensure_ascii=False))}"
    if kind == "tool_result":
        said = "\n".join(part.get("text", "(image)") for part in block["content"])
        return f"<- {'error: ' if block.get('is_error') else ''}{brief(said)}"
    return f"({kind})"
