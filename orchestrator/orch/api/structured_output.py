"""Structured output. This module adds the request for a JSON value to prompts, and parses the reply."""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import BadReplyError, ConfigError
from orch_protocol.core.messages import Reply
from orch_protocol.services.resources.values import TakenValue
from orch_worker.tools.values.values import value_of

from ..config.config import OFFLINE
from .return_types import MismatchError, ReturnType

__all__ = [
    "AskedValue",
    "Returned",
    "check_model",
    "failed_correction",
    "load_value",
    "parse_value",
    "prompt_for_correction",
    "prompt_for_value",
    "value_of",
]


T = TypeVar("T")

FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


def check_model(model: str | None) -> None:
    """Raise ConfigError if `model` is the offline search, which cannot answer with a value.

    `model` is `provider:name`. None stands for the offline search.
    """
    if model is None or model.removesuffix(":") == OFFLINE.removesuffix(":"):
        raise ConfigError(
            "no model configured: offline search quotes files and cannot answer with a value. Run `orch init`, or pass "
            "model= or backend= (in the shell --model or --script)"
        )


def prompt_for_value(prompt: str, expected: ReturnType[Any]) -> str:
    """Return `prompt` followed by a request for JSON that matches the schema of `expected`."""
    schema = msgspec.json.encode(expected.schema).decode()
    return f"{prompt}\n\nAnswer with one JSON value that fits this schema, and with nothing else:\n{schema}"


def prompt_for_correction(error: Exception) -> str:
    """Return the prompt that asks the model to correct its reply."""
    return f"That is not the JSON value that was asked for: {error}. Answer again, with the JSON value alone."


def failed_correction(failure: Exception, error: BadReplyError, text: str) -> str:
    """Return the message of `failure`, which ended the correction of the reply `text`. `error` is why it is invalid."""
    return f"{failure}. This ended the correction of a reply that does not match `returns` ({error}): {text[:200]!r}"


def parse_value(text: str, expected: ReturnType[T]) -> T:
    """Find JSON of the type `expected` in `text` and return its value.

    The JSON may be in a code fence or surrounded by prose. Raises BadReplyError.
    """
    found = FENCED.findall(text)
    spans = [(text.find(begin), text.rfind(end) + 1) for begin, end in ("{}", "[]")]
    inner = [text[start:stop] for start, stop in sorted(spans) if -1 < start < stop]
    problem: Exception | None = None
    mismatched: list[str] = []
    for candidate in (text.strip(), *reversed(found), *inner):
        if candidate.startswith("[") and any(candidate in each for each in mismatched):
            continue  # a list inside an invalid object is not the requested value
        try:
            return expected.decode(candidate.encode())
        except MismatchError as error:
            problem = error
            mismatched.append(candidate)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            problem = problem or error
    raise BadReplyError(str(problem)) from problem


class AskedValue(Struct, Generic[T], frozen=True):
    """The answer of one agent to a prompt with `returns=`. If `error` is None, `value` is the requested value.

    `reply` is the agent's last reply, or None if there was no reply.
    """

    ref: str
    value: T | None = None
    reply: Reply | None = None
    error: str | None = None


# --- Results of queries with `return_name` ---


class Returned(Struct, frozen=True):
    """The value that an agent's Python had bound to `name` when the agent answered with `reply`.

    `type` and `extent` describe the value ("pandas.DataFrame", "99 rows x 2 columns"). `lines` contains its schema and
    its first lines. `path` is the file with the value, in the format `kind`. The file exists as long as the agent's
    session.
    """

    value: Any
    name: str
    type: str
    extent: str
    lines: tuple[str, ...]
    kind: str
    path: str
    reply: Reply


def load_value(exported: TakenValue, reply: Reply) -> Returned:
    """Read the value `exported` from its file. Return the value with `reply`. Raises NoValueError."""
    value = exported.value
    return Returned(
        value_of(exported), exported.name, value.type, value.extent, value.lines, value.kind, exported.path, reply
    )
