"""The option `--returns FILE` queries for a JSON value that matches the JSON schema in FILE."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import BackendError, BadReplyError, ConfigError
from orch_protocol.core.text import TextEncodingError, decode_text
from orch_protocol.services.resources.values import TakenValue

from ...api.return_types import ReturnType, return_type
from ...api.structured_output import failed_correction, parse_value, prompt_for_correction, prompt_for_value, value_of
from ...client.connection import Connection
from ...client.failure import CommandError

__all__ = ["ReturnedValue", "ask_for_value", "type_in_file", "whole_text"]


class ReturnedValue(Struct, frozen=True):
    """A value of the requested type, as JSON data and as text."""

    data: Any
    text: str


def type_in_file(file: str) -> ReturnType[Any]:
    """Return the type that the JSON schema in `file` describes. Raises CommandError."""
    try:
        schema = msgspec.json.decode(decode_text(Path(file).read_bytes()), type=dict[str, Any])
        return return_type(schema)
    except (OSError, TextEncodingError, msgspec.MsgspecError) as error:
        raise CommandError("ConfigError", f"--returns: cannot read a JSON schema from {file}: {error}", 2) from error
    except ConfigError as error:
        raise CommandError("ConfigError", f"--returns {file}: {error}", error.exit_code) from error


def ask_for_value(
    connection: Connection, prompt: str, expected: ReturnType[Any], ask: Callable[[dict[str, Any]], dict[str, Any]]
) -> tuple[ReturnedValue, dict[str, Any]]:
    """Send `prompt` with the schema of `expected`.

    Return the value and the reply. An invalid reply can be corrected once. `ask` takes the fields of a query that
    differ between the attempts, and returns the reply. Raises CommandError.
    """
    reply = ask({"prompt": prompt_for_value(prompt, expected)})
    try:
        return _value(connection, reply, expected), reply
    except BadReplyError as error:
        try:
            corrected = ask({"prompt": prompt_for_correction(error), "images": [], "request_id": os.urandom(8).hex()})
        except CommandError as failure:
            if failure.kind != BackendError.__name__:
                raise
            message = failed_correction(failure, error, reply["text"])
            raise CommandError(failure.kind, message, failure.exit_code, failure.outcome) from failure
        reply = corrected
    try:
        return _value(connection, reply, expected), reply
    except BadReplyError as error:
        raise CommandError(
            "BadReplyError",
            f"agent {reply['id']} did not return a value that matches --returns in two attempts: {error}. "
            f"Last reply: {reply['text'][:200]!r}",
            error.exit_code,
        ) from error


def whole_text(connection: Connection, reply: dict[str, Any]) -> Any:
    """Return the text of a reply, which is longer than its field `text` if that is truncated. Raises CommandError."""
    if not reply["whole"]:
        return reply["text"]
    exported = connection.call("take_value", {"ref": reply["id"], "name": reply["whole"]})
    return value_of(msgspec.convert(exported, TakenValue))


def _value(connection: Connection, reply: dict[str, Any], expected: ReturnType[Any]) -> ReturnedValue:
    value = parse_value(whole_text(connection, reply), expected)
    return ReturnedValue(value, msgspec.json.encode(value).decode())
