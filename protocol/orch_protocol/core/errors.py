"""Everything that can go wrong, as one tree.

    OrchError
    ├── ConfigError
    ├── SpawnError
    │   ├── DepthCapError
    │   ├── ConcurrencyLimitError
    │   ├── ToolNotGrantedError
    │   ├── LaunchError
    │   ├── SandboxError
    │   └── UnsupportedPlatformError
    ├── AgentError
    │   ├── AgentNotFoundError
    │   ├── EntryNotFoundError
    │   ├── AmbiguousRefError
    │   ├── AgentBusyError
    │   ├── AgentDiedError
    │   ├── AgentGoneError
    │   ├── CredentialsError
    │   ├── ArchiveDeletedError
    │   ├── SessionDeletedError
    │   ├── NoResultError
    │   ├── NoValueError
    │   ├── QueryTimeoutError
    │   └── QueryCycleError
    ├── BackendError
    │   ├── RateLimitError
    │   ├── ContextOverflowError
    │   ├── BackendTimeoutError
    │   ├── TruncatedReplyError
    │   └── BadReplyError
    ├── BudgetExceededError
    ├── StoreError
    │   ├── ForeignFileError
    │   ├── LockedError
    │   └── DamagedError
    └── ProtocolError
        ├── VersionMismatchError
        └── MessageTooLargeError

Every message says what happened, to which thing, and what to do. `exit_code` is what the CLI exits with.
"""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from msgspec import Struct

__all__ = [
    "AgentBusyError",
    "AgentDiedError",
    "AgentError",
    "AgentGoneError",
    "AgentNotFoundError",
    "AmbiguousRefError",
    "ArchiveDeletedError",
    "BackendError",
    "BackendTimeoutError",
    "BadReplyError",
    "BudgetExceededError",
    "ConcurrencyLimitError",
    "ConfigError",
    "ContextOverflowError",
    "CredentialsError",
    "DamagedError",
    "DepthCapError",
    "EntryNotFoundError",
    "ErrorInfo",
    "ForeignFileError",
    "LaunchError",
    "LockedError",
    "MessageTooLargeError",
    "NoResultError",
    "NoValueError",
    "OrchError",
    "Outcome",
    "ProtocolError",
    "QueryCycleError",
    "QueryTimeoutError",
    "RateLimitError",
    "SandboxError",
    "SessionDeletedError",
    "SpawnError",
    "StoreError",
    "ToolNotGrantedError",
    "TruncatedReplyError",
    "UnsupportedPlatformError",
    "VersionMismatchError",
    "error_from",
    "error_info",
    "outcome_of",
]


Outcome: TypeAlias = Literal["done", "failed", "killed", "lost", "timeout", "oom", "budget"]
"""How a query ended, once and for all. `lost`: its process ended and nobody knows why; `oom`: for want of memory."""


class OrchError(Exception):
    """The root of every error orch raises on purpose. `outcome` is how a query ended that ended with it."""

    exit_code = 1
    outcome: Outcome = "failed"

    def as_outcome(self, outcome: Outcome) -> Self:
        """Return this error, which ended a query with `outcome`."""
        self.outcome = outcome
        return self


class ConfigError(OrchError):
    """A configuration file, variable or argument does not fit; the message names file, line and field."""

    exit_code = 2


class SpawnError(OrchError):
    """An agent could not be started."""


class DepthCapError(SpawnError):
    """The agent that asked is already as deep as agents may be, or may not nest at all."""

    exit_code = 5


class ConcurrencyLimitError(SpawnError):
    """As many agents are alive as may be at once."""

    exit_code = 5


class ToolNotGrantedError(SpawnError):
    """A tool was asked for that does not exist or that the parent does not hold itself."""

    exit_code = 2


class LaunchError(SpawnError):
    """The process did not come up; the message carries the end of its log."""


class SandboxError(SpawnError):
    """This machine cannot keep tools from what they are required to be kept from; the message says what is missing."""


class UnsupportedPlatformError(SpawnError):
    """This platform cannot start workers."""


class AgentError(OrchError):
    """Something about one agent."""


class CredentialsError(AgentError):
    """The agent waits for the key it was made with; nothing was asked."""


class AgentNotFoundError(AgentError):
    """No agent goes by that reference."""

    exit_code = 3


class EntryNotFoundError(AgentError):
    """The agent's session has no entry of that id, label or beginning of an id."""

    exit_code = 3


class AmbiguousRefError(AgentError):
    """Several agents' ids, or entries', begin like that; the message lists them."""

    exit_code = 3


class AgentBusyError(AgentError):
    """The agent is in the middle of a turn; one query at a time."""

    exit_code = 4


class AgentDiedError(AgentError):
    """The agent's process ended before the turn did. The next query revives it."""

    outcome = "lost"


class AgentGoneError(AgentError):
    """The agent was killed on purpose; `orch resume` brings it back."""

    exit_code = 3
    outcome = "killed"


class ArchiveDeletedError(AgentError):
    """What an archive held was deleted for good; the message says when."""

    exit_code = 3


class SessionDeletedError(AgentError):
    """What was said to an agent that was killed was deleted for good; the message says when."""

    exit_code = 3


class NoResultError(AgentError):
    """There is nothing to collect: nothing was asked, or it was collected already."""

    exit_code = 3


class NoValueError(AgentError):
    """A value of an agent cannot be had: nothing goes by that name, or it is none that can leave its process."""

    exit_code = 3


class QueryTimeoutError(AgentError):
    """The waiter's time ran out. The agent works on; collect its answer later."""

    exit_code = 4


class QueryCycleError(AgentError):
    """The query would wait for an agent that waits, directly or not, for the one that asks."""


class BackendError(OrchError):
    """The model's side failed."""


class RateLimitError(BackendError):
    """The provider said: too many requests."""


class ContextOverflowError(BackendError):
    """The request does not fit the model's context window."""


class BackendTimeoutError(BackendError):
    """The provider went silent past a deadline."""


class TruncatedReplyError(BackendError):
    """The stream ended without a stop reason."""


class BadReplyError(BackendError):
    """The reply is not the value that was asked for, not after it was asked for again either."""


class BudgetExceededError(OrchError):
    """The budget does not cover the next request to a model; the message says whose it is and what raises it."""

    exit_code = 5
    outcome = "budget"


class StoreError(OrchError):
    """A file could not be read or written as it must be."""


class ForeignFileError(StoreError):
    """The file is not one of ours; it was not touched."""


class LockedError(StoreError):
    """Another process owns this folder."""


class DamagedError(StoreError):
    """The file is damaged beyond what loading may repair."""


class ProtocolError(OrchError):
    """A frame or request does not fit the protocol."""

    exit_code = 2


class VersionMismatchError(ProtocolError):
    """The two sides speak different versions."""


class MessageTooLargeError(ProtocolError):
    """A message is larger than any road it could take."""


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """An error as data: the name of its class and its message. Crosses every boundary.

    `outcome` is how the query ended that it ended, "" for the usual one of its class.
    """

    type: str
    message: str
    outcome: Outcome | Literal[""] = ""


def _classes(base: type[OrchError]) -> dict[str, type[OrchError]]:
    found = {base.__name__: base}
    for child in base.__subclasses__():
        found |= _classes(child)
    return found


def error_info(error: BaseException) -> ErrorInfo:
    """Return `error` as data. An error that is not ours keeps its class name inside the message."""
    if isinstance(error, OrchError):
        return ErrorInfo(type(error).__name__, str(error), vars(error).get("outcome", ""))
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ErrorInfo("OrchError", said, "oom" if isinstance(error, MemoryError) else "")


def error_from(info: ErrorInfo) -> OrchError:
    """Return the exception that `info` describes, for the caller to raise; unknown names become OrchError."""
    error = _classes(OrchError).get(info.type, OrchError)(info.message)
    return error.as_outcome(info.outcome) if info.outcome else error


def outcome_of(info: ErrorInfo) -> Outcome:
    """Return how a query ended that ended with the error that `info` describes."""
    return info.outcome or _classes(OrchError).get(info.type, OrchError).outcome
