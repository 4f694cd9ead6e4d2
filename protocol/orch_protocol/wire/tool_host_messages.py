"""Messages between a worker and its tool host: four bytes of length (big endian), then msgpack.

The worker sends `StartToolHost` first. Each `CallTool`, `ExportName` and `DescribeNames` has one answer with the same
`id`, also after `CancelCall`. Ids are positive and increase. The worker does not trust the answers, because code of the
agent runs in the tool host: a wrong type, an unknown id or more than MAX_ANSWER bytes end the tool host.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ..core.messages import Image
from ..core.taint import TaintLabel
from ..core.values import BoundName, ExportResult
from ..policy.policy import FilterRules, PolicyConfig
from ..policy.sandbox import SandboxSpec

__all__ = [
    "LENGTH_BYTES",
    "MAX_ANSWER",
    "MAX_PARTS",
    "Answer",
    "CallTool",
    "CancelCall",
    "DescribeNames",
    "ExportName",
    "ExportedValue",
    "HostedOutput",
    "NamesDescribed",
    "Request",
    "StartToolHost",
    "ToolReturned",
    "decode_answer",
    "decode_request",
    "decode_start",
    "encode",
]

LENGTH_BYTES: Final = 4
MAX_ANSWER: Final = 64 << 20
"""Maximum size of an answer in bytes. Images are the largest part of an answer."""

MAX_PARTS: Final = 100
"""Maximum number of changed files, and of images, in a result."""

Id = Annotated[int, Meta(ge=1)]


class StartToolHost(Struct, frozen=True):
    """The agent of a tool host. The fields are those of the worker's `ToolContext`.

    `umask` is None for the umask of the process. If `hides_paths` is True, orch's folders and denied paths are hidden
    from the tool host. `granted` are the names of the agent's tools.
    """

    agent_id: str
    cwd: str
    env: dict[str, str]
    folder: str | None
    umask: int | None
    sandbox: SandboxSpec
    policy: PolicyConfig
    orch_folders: tuple[str, ...]
    in_process: bool
    hides_paths: bool
    granted: tuple[str, ...]


class CallTool(Struct, frozen=True, array_like=True, tag=True):
    """Run a tool. `input` are its arguments as JSON, which can contain any text and any number.

    Paths are bytes, because names of files need not be text. `judged_path` is None if the policy judged no path.
    `filter_rules` are the rules for the files that the call finds. `code_ran` is True if code ran since the last call,
    in the tool host or elsewhere, and may have changed any file.
    """

    id: int
    tool: str
    input: bytes
    call_id: str
    seconds: float
    credentials: tuple[bytes, ...]
    judged_path: bytes | None
    filter_rules: FilterRules | None
    code_ran: bool


class CancelCall(Struct, frozen=True, array_like=True, tag=True):
    """Cancel a request, because it exceeded its time limit or its turn was canceled."""

    id: int


class ExportName(Struct, frozen=True, array_like=True, tag=True):
    """Store the variable or handle `name` in a file."""

    id: int
    name: str


class DescribeNames(Struct, frozen=True, array_like=True, tag=True):
    """Describe the variables that the agent's code has bound."""

    id: int


Request: TypeAlias = CallTool | CancelCall | ExportName | DescribeNames


class HostedOutput(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of a tool. The fields are those of the worker's `ToolOutput`.

    A tool host calls no model and no website, so its results have no usage and no web address.
    """

    text: str
    is_error: bool = False
    files_changed: Annotated[tuple[bytes, ...], Meta(max_length=MAX_PARTS)] = ()
    local: bool = False
    marks: tuple[TaintLabel, ...] = ()
    images: Annotated[tuple[Image, ...], Meta(max_length=MAX_PARTS)] = ()


class ToolReturned(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """The result of a call."""

    id: Id
    output: HostedOutput


class ExportedValue(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """The exported value, or the error."""

    id: Id
    result: ExportResult


class NamesDescribed(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """The variables that the agent's code has bound."""

    id: Id
    names: dict[str, BoundName]


Answer: TypeAlias = ToolReturned | ExportedValue | NamesDescribed

_encode = msgspec.msgpack.Encoder().encode
decode_start = msgspec.msgpack.Decoder(StartToolHost).decode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def encode(message: Struct) -> bytes:
    """Return `message` with its length. Raise UnicodeEncodeError or OverflowError for values without an encoding."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES) + body
