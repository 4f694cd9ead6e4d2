"""Replies as values: what the model is asked for, and what its answer is read as."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import BadReplyError, ConfigError
from orch_protocol.core.messages import Reply
from orch_protocol.core.values import TakenValue
from orch_worker.tools.values.values import value_of

__all__ = ["Returned", "load_value", "parse_value", "prompt_for_correction", "prompt_for_value", "value_of"]


T = TypeVar("T")

FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


def prompt_for_value(prompt: str, returns: type[Any]) -> str:
    """Return `prompt` with the request to answer with JSON that is a `returns`. Raises ConfigError for what has no
    schema."""
    try:
        schema = msgspec.json.encode(msgspec.json.schema(returns)).decode()
    except TypeError as error:
        raise ConfigError(f"returns is a type that JSON can be, such as a msgspec.Struct: {error}") from error
    return f"{prompt}\n\nAnswer with one JSON value that fits this schema, and with nothing else:\n{schema}"


def prompt_for_correction(error: Exception) -> str:
    """Return the prompt that gives the model its one chance to mend its reply."""
    return f"That is not the JSON value that was asked for: {error}. Answer again, with the JSON value alone."


def parse_value(text: str, returns: type[T]) -> T:
    """Return the `returns` in `text`, which may stand in a fence or have prose around it. Raises BadReplyError."""
    found = FENCED.findall(text)
    ends = [(text.find(begin), text.rfind(end) + 1) for begin, end in ("{}", "[]")]
    inner = [text[start:stop] for start, stop in sorted(ends) if -1 < start < stop]
    problem: Exception | None = None
    others: list[str] = []
    for candidate in (text.strip(), *reversed(found), *inner):
        if candidate.startswith("[") and any(candidate in each for each in others):
            continue  # a list in an object is a part of what was not asked for
        try:
            return msgspec.json.decode(candidate.encode(), type=returns)
        except msgspec.ValidationError as error:
            problem = error
            others.append(candidate)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            problem = problem or error
    raise BadReplyError(str(problem)) from problem


# --- What a query with `return_name` returns ---


class Returned(Struct, frozen=True):
    """A value that an agent's Python held under `name`, as it was when the agent answered with `reply`.

    `type` and `extent` say what it is ("pandas.DataFrame", "99 rows x 2 columns"), `lines` are its schema and its
    beginning. `path` is the file that holds it as data of the kind `kind`; it stays as long as the agent's session.
    """

    value: Any
    name: str
    type: str
    extent: str
    lines: tuple[str, ...]
    kind: str
    path: str
    reply: Reply


def load_value(taken: TakenValue, reply: Reply) -> Returned:
    """Return the value that was `taken`, read from its file. Raises NoValueError."""
    value = taken.value
    return Returned(value_of(taken), taken.name, value.type, value.extent, value.lines, value.kind, taken.path, reply)
