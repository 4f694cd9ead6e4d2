"""Tables and pages for terminals. Text from models and files is always escaped."""

from __future__ import annotations

import json
import sys
import time

from .columns import escape, format_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TextIO

__all__ = [
    "activity_line",
    "age",
    "agent_page",
    "agent_table",
    "agent_tree",
    "budget",
    "count",
    "format_cost",
    "fullness",
    "message",
    "one_line",
    "pluralize",
    "safe",
    "safe_for_stdout",
    "status",
    "supports_unicode",
    "task_lines",
    "to_json",
    "truncate_line",
]

HEAD = ("#", "ID", "RUN", "NAME", "STATUS", "AGE", "MODEL", "CONTEXT", "TOKENS", "COST", "BUDGET", "")
RIGHT = frozenset({"#", "AGE", "CONTEXT", "TOKENS", "COST", "BUDGET"})
TEXT = frozenset({""})
"""Columns that are cut if the terminal is narrow."""
OPTIONAL = frozenset({"RUN", "BUDGET"})
"""Columns that are left out if no agent has a value for the column."""
WIDTH = 60
HOLDER = "(archive)"
FULL = ((95, "nearly full"), (90, "high"), (75, "getting full"))
"""Minimum percentages of the context window, and the warning word for each."""


def to_json(value: object) -> str:
    """Return `value` as one line of ASCII JSON."""
    return json.dumps(value, separators=(",", ":"))


def safe(text: str) -> str:
    """Return `text` with control characters escaped. Line breaks and tabs stay."""
    return escape(text, kept="\t\n\u2028\u2029")


def safe_for_stdout(text: str) -> str:
    """Return `text` for stdout. If stdout is a terminal, control characters are escaped."""
    return safe(text) if sys.stdout.isatty() else text


def supports_unicode(out: TextIO) -> bool:
    """Return whether `out` can encode the characters of tables and lists."""
    return (out.encoding or "").lower().replace("-", "") == "utf8"


def one_line(text: str) -> str:
    """Return `text` as one line."""
    return safe(" ".join(text.split()))


def truncate_line(text: str, width: int = WIDTH) -> str:
    """Return `text` as one line, truncated to `width` characters."""
    flat = one_line(text)
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def agent_table(rows: list[dict[str, Any]], now: float | None = None) -> str:
    """Return agents as a table."""
    return _agents([_cells(row, "", row["usage"], now) for row in rows])


def agent_tree(rows: list[dict[str, Any]], now: float | None = None, width: int | None = None) -> str:
    """Return agents as a tree. The tokens and cost of an agent include its descendants.

    `width` is the number of columns. The default is the width of the terminal on stdout.
    """
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
    return _agents(cells, width)


def agent_page(shown: dict[str, Any], now: float | None = None) -> str:
    """Return one agent as a page with its properties and its last messages."""
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
        "denied paths": safe(row.get("denied_paths", "")),
        "folder": safe(row["cwd"]),
        "process": str(row["pid"] or ""),
        "parent": row["parent_id"] or "",
        "age": age(row["created_at"], now),
        "context": fullness(row),
        "compacted": pluralize(times, "time") if (times := shown.get("compactions")) else "",
        "queries": str(row["queries"]),
        "usage": f"{_tokens(row['usage'])} tokens, {format_cost(row['usage'])}",
        "with children": _branch(row),
        "budget": _budget(row),
        "transcript": safe(row["folder"]),
        "repaired": safe(row.get("repaired", "")),
    }
    for each in shown.get("marks", ()):
        entry = facts.get(each["bit"])
        facts[each["bit"]] = f"{entry}; {safe(each['by'])}" if entry else safe(each["by"]) or "yes"
    archive = shown.get("archive")
    page = [f"{row['seq']}  {HOLDER if archive else safe(row['name'])}  {row['id']}"]
    page += [f"  {name + ':':15}{value}" for name, value in facts.items() if value]
    if archive:
        page += _archive(archive, shown["held"])
        page += ["\nwas asked:"] if shown["messages"] else []
    if tasks := shown.get("tasks"):
        page += ["\ntasks:", *(f"  {each}" for each in task_lines(tasks))]
    page += [f"\n{entry['role']}:\n{_lines(entry, truncate_line)}" for entry in shown["messages"]]
    return "\n".join(page)


def task_lines(tasks: list[dict[str, Any]]) -> list[str]:
    """Return tasks with their status, one per line."""
    from orch_protocol.agent.plan import STATUS_SYMBOLS

    return [
        f"{STATUS_SYMBOLS[each['status']]} {number}. {truncate_line(each['text'])}"
        for number, each in enumerate(tasks, 1)
    ]


def _archive(archive: dict[str, Any], kept_entries: list[dict[str, Any]]) -> list[str]:
    """Return lines about the size of a holder's archive, its record in the conversation, and its first entries."""
    sizes = ", ".join(
        [
            *(pluralize(archive["messages"], "message"), pluralize(archive["turns"], "turn")),
            *([f"of {pluralize(len(archive['members']), 'archive')}"] if archive["members"] else []),
        ]
    )
    page = [f"\narchive (one {archive['kind']}: {sizes}; {archive['reason']}):"]
    page += [f"  {each}" for each in safe(archive["record"]).splitlines()]
    page += [
        f"\nentry {number}, {entry['role']}:\n{_lines(entry, truncate_line)}"
        for number, entry in enumerate(kept_entries, 1)
    ]
    if (left := archive["messages"] - len(kept_entries)) > 0:
        page.append(f"\n{left} more: orch archive read {archive['id']} {len(kept_entries) + 1}-")
    return page


def activity_line(rows: list[dict[str, Any]], id: str, now: float | None = None) -> str:
    """Return the current activities of agent `id` and its descendants, with their durations, on one line."""
    below, parts = {id}, []
    for row in rows:  # parents come before their children
        if row["id"] in below or row["parent_id"] in below:
            below.add(row["id"])
            if row["pending"] is not None:
                doing = truncate_line(row["activity"] or row["status"])
                parts.append(f"{safe(row['name'])}: {doing}, {age(row['last_activity'], now)}")
    return "; ".join(parts)


def age(since: str, now: float | None = None) -> str:
    """Return the time since the ISO 8601 time `since`, in the largest non-zero unit."""
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
    """Return `number` with `noun`, in the plural if necessary."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def context(row: dict[str, Any]) -> str:
    """Return the size of the context, followed by the context limit if it is known."""
    limit = row["context_limit"]
    return f"{count(row['context_tokens'])}/{count(limit)}" if limit else count(row["context_tokens"])


def fullness(row: dict[str, Any]) -> str:
    """Return the size of the context and its percentage of the limit, with a warning word if it is nearly full."""
    limit = row["context_limit"]
    share = row["context_tokens"] * 100 // limit if limit else 0
    word = next((f", {word}" for minimum, word in FULL if share >= minimum), "")
    return context(row) + (f" ({share} %{word})" if share else "")


def status(row: dict[str, Any]) -> str:
    """Return the agent's status. If its last query did not succeed, add the outcome of that query."""
    outcome = row.get("outcome", "")
    return f"{row['status']}, {outcome}" if outcome not in ("", "done", row["status"]) else str(row["status"])


def _cells(row: dict[str, Any], lead: str, usage: dict[str, Any], now: float | None) -> list[str]:
    doing = one_line(f"{row['status']}: {row['pending']}" if row["pending"] else row["task"])
    # The name of a holder is its id.
    name = lead + (HOLDER if row.get("kind") == "holder" else one_line(row["name"]))
    return [
        # Agent numbers are valid only in the daemon's own run.
        *("-" if row.get("run") else str(row["seq"]), row["id"], one_line(row.get("run", ""))),
        *(name, status(row), age(row["created_at"], now), one_line(row["model"])),
        *(context(row), _tokens(usage), format_cost(usage), _share(row), doing),
    ]


def _agents(cells: list[list[str]], width: int | None = None) -> str:
    if not cells:
        return "no agents; start one: orch spawn TASK"
    shown = [at for at, name in enumerate(HEAD) if name not in OPTIONAL or any(each[at] for each in cells)]
    right, text = ([place for place, at in enumerate(shown) if HEAD[at] in names] for names in (RIGHT, TEXT))
    return format_columns([[each[at] for at in shown] for each in [HEAD, *cells]], right, text=text, width=width)


def _tokens(usage: dict[str, Any]) -> str:
    return count(sum(usage[key] for key in usage if key.endswith("_tokens")))


def format_cost(usage: Mapping[str, Any]) -> str:
    """Return the cost of `usage` in dollars. "~" marks an estimate, ">=" marks a lower bound."""
    unknown = "~" if usage.get("ceiling_usd") else ">="
    return f"{'' if usage.get('cost_known', True) else unknown}${usage['cost_usd']:.4f}"


def _branch(row: dict[str, Any]) -> str:
    usage = row["tree_usage"]
    return f"{_tokens(usage)} tokens, {format_cost(usage)}" if usage != row["usage"] else ""


def budget(shown: dict[str, Any]) -> str:
    """Return the total usage of all agents and its limits, one kind of limit per line."""
    limits, configured = shown["budget"], shown["configured"]
    lines = []
    for kind, spent in shown["spent"].items():
        limit = limits.get(_limit(kind))
        change_note = "" if limit == configured.get(_limit(kind)) else ", changed by the user"
        lines.append([kind, (_of(kind, spent, limit) if limit else _amount(kind, spent)) + change_note])
    return format_columns(lines)


def _budget(row: dict[str, Any]) -> str:
    return ", ".join(f"{_of(*each)} used" for each in _bounded(row))


def _share(row: dict[str, Any]) -> str:
    """Return the used percentage of the agent's budget.

    The result is the highest percentage among the limited kinds of usage.
    """
    shares = [spent / limit for _, spent, limit in _bounded(row)]
    return f"{min(100, int(100 * max(shares)))} %" if shares else ""


def _bounded(row: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Return the kind, usage and limit for each kind of usage that has a limit."""
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


def message(data: dict[str, Any]) -> str:
    """Return the message `data` in full, as text for stdout."""
    return _lines(data, str, safe_for_stdout)


def _lines(message: dict[str, Any], shorten: Callable[[str], str], escape: Callable[[str], str] = safe) -> str:
    """Return the lines of the message `message`.

    `shorten` shortens thinking, calls and results. `escape` converts the text of each block for output.
    """
    texts = [_block(block, shorten) for block in message["content"]]
    return "\n".join(f"  {each}" for text in texts for each in escape(text).splitlines())


def _block(block: dict[str, Any], shorten: Callable[[str], str]) -> str:
    from orch_protocol.core.images import part_text

    kind = block["type"]
    if kind in ("text", "image"):
        return part_text(block)
    if kind == "thinking":
        return f"(thinking) {shorten(block['thinking'])}"
    if kind == "tool_use":
        return f"-> {block['name']} {shorten(json.dumps(block['input'], ensure_ascii=False))}"
    if kind == "tool_result":
        text = "\n".join(map(part_text, block["content"]))
        return f"<- {'error: ' if block.get('is_error') else ''}{shorten(text)}"
    return f"({kind})"
