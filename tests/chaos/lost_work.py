"""Finds lost work in files: `lost_work.py <home> <answers, one JSON object on each line>`.

This program shares no code with orch. It reads session files and the journal as any program could. The rows are
`{"agent", "token", "answered", "right"}` for each finished question. They contain `takers` if several callers requested
the answer at the same time, and `cut_short` if an accepted query ended with its root. Other rows are `{"agent",
"archive"}` for each archive that a client knows, and `{"left": [pid...]}` for processes that remained.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from session_file import Remains

__all__ = ["judge"]


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects on the lines of a file. Incomplete lines are skipped. A missing file has no lines."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message of the conversation."""
    return " ".join(block.get("text", "") for block in message["content"])


class Told:
    """The questions to one agent, as its transcript records them."""

    def __init__(self, folder: Path) -> None:
        self.asked: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.order: list[str] = []
        prompts: dict[str, str] = {}
        for row in rows(folder / "session.jsonl"):
            if row["type"] == "message" and row["message"]["role"] == "user":
                for token in tokens_in(text_of(row["message"])):
                    self.asked[token] += 1
                    self.order.append(token)
                    prompts[row.get("turn", "")] = token
            elif row["type"] == "turn_end" and (token := prompts.get(row.get("turn", ""), "")):
                self.ended[token] += 1


def tokens_in(text: str) -> list[str]:
    """Return the names of the questions in `text`. These are words that begin with `token-`."""
    return [word for word in text.replace("\n", " ").split(" ") if word.startswith("token-")]


def judge(home: Path, log: Path) -> list[str]:
    """Return a sentence for each error."""
    wrong: list[str] = []
    events: dict[str, Told] = {}
    last: dict[str, str] = {}
    archived: list[str] = []
    for row in rows(log):
        if "left" in row:
            wrong += [f"process {pid} was left behind" for pid in row["left"]]
            continue
        if "archive" in row:
            archived.append(row["archive"])
            continue
        agent, token = row["agent"], row["token"]
        if agent not in events:
            # The conversation of a holder is in the folder of the agent whose archive the holder owns.
            events[agent] = Told(next(home.glob(f"sessions/**/{agent}"), home / agent))
        found = events[agent]
        if found.asked[token] > 1:
            wrong.append(f"{token} was put to {agent} {found.asked[token]} times")
        if row.get("takers", 0) > 1:
            wrong.append(f"the answer to {token} was taken {row['takers']} times")
        if row.get("cut_short") and not found.asked[token]:
            wrong.append(f"{token} was accepted and never reached {agent}")
        if not row.get("answered"):
            continue
        if not row["right"]:
            wrong.append(f"{token} was answered by {agent} with something else")
        if not found.asked[token] or not found.ended[token]:
            wrong.append(f"{token} was answered by {agent} and is lost")
            continue
        if found.ended[token] > 1:
            wrong.append(f"{token} has {found.ended[token]} answers in the file of {agent}")
        elif agent in last and found.order.index(token) <= found.order.index(last[agent]):
            wrong.append(f"{token} stands before {last[agent]} in the file of {agent}, and was asked after it")
        last[agent] = token
    there: set[str] = set()
    for folder in sorted(path.parent for path in (home / "sessions").glob("*/session.jsonl")):
        try:
            remains = Remains(folder)
            remains.check()
        except AssertionError as error:
            wrong.append(f"{folder.name}: {error}")
            continue
        there |= set(remains.collapses)
        wrong += [
            f"{folder.name}: a compaction keeps what stands from {row['firstKeptEntryId']} on, which is not there"
            for row in rows(folder / "session.jsonl")
            if row["type"] == "compaction" and row["firstKeptEntryId"] not in remains.messages
        ]
        for holder, collapse in remains.collapses.items():
            held = b"".join(remains.data[start : start + length] for start, length in collapse["spans"])
            if hashlib.sha256(held).hexdigest() != collapse["sha256"]:
                wrong.append(f"{holder} does not hold what it was given")
    wrong += [f"archive {each} was told of and is lost" for each in archived if each not in there]
    collected = Counter(
        row["query_id"]
        for path in home.glob("runs/*/journal.jsonl")
        for row in rows(path)
        if row["type"] == "reply_collected"
    )
    wrong += [
        f"query {query} is on record as collected {times} times" for query, times in collected.items() if times > 1
    ]
    return wrong


def main() -> int:
    """Judge the files and print the errors."""
    wrong = judge(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(wrong) or "nothing is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
