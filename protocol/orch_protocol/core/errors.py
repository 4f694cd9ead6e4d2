"""The exceptions of orch.

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
    │   ├── QueryCycleError
    │   └── WorktreeError
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

Every message states what failed, the offending value and what to do. `exit_code` is the exit status of the CLI.
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
    "WorktreeError",
    "error_from",
    "error_info",
    "outcome_of",
]


Outcome: TypeAlias = Literal["done", "failed", "killed", "lost", "timeout", "oom", "budget"]
"""How a query ended. `lost`: the process ended for an unknown reason; `oom`: the process ran out of memory."""


class OrchError(Exception):
    """Base class of all errors that orch raises on purpose.

    If a query ends with the error, `outcome` is the outcome of the query.
    """

    exit_code = 1
    outcome: Outcome = "failed"

    def as_outcome(self, outcome: Outcome) -> Self:
        """Set `outcome` of this error, and return this error."""
        self.outcome = outcome
        return self


class ConfigError(OrchError):
    """A configuration file, variable or argument is invalid. The message names the file, line and field."""

    exit_code = 2


class SpawnError(OrchError):
    """An agent could not be started."""


class DepthCapError(SpawnError):
    """The caller is at the maximum depth, or the caller may not spawn agents at all."""

    exit_code = 5


class ConcurrencyLimitError(SpawnError):
    """The maximum number of agents is already running."""

    exit_code = 5


class ToolNotGrantedError(SpawnError):
    """A requested tool does not exist, or the parent does not have it."""

    exit_code = 2


class LaunchError(SpawnError):
    """The process did not start. The message contains the end of the log of the process."""


class SandboxError(SpawnError):
    """This machine does not support the required sandbox. The message names the missing feature."""


class UnsupportedPlatformError(SpawnError):
    """This platform cannot start workers."""


class AgentError(OrchError):
    """An operation on an agent failed."""


class CredentialsError(AgentError):
    """The agent waits for the API key with which it was created. No request was sent."""


class AgentNotFoundError(AgentError):
    """No agent matches the reference."""

    exit_code = 3


class EntryNotFoundError(AgentError):
    """A session has no such entry, or no note, permission, run, skill or template has that name or id."""

    exit_code = 3


class AmbiguousRefError(AgentError):
    """Several agents or entries match the prefix. The message lists all matches."""

    exit_code = 3


class AgentBusyError(AgentError):
    """The agent is already working on a query."""

    exit_code = 4


class AgentDiedError(AgentError):
    """The agent's process ended during the turn. The next query starts a new process."""

    outcome = "lost"


class AgentGoneError(AgentError):
    """The agent was killed on purpose. `orch resume` restores the agent."""

    exit_code = 3
    outcome = "killed"


class ArchiveDeletedError(AgentError):
    """The content of the archive was permanently deleted. The message contains the time of the deletion."""

    exit_code = 3


class SessionDeletedError(AgentError):
    """The session of a killed agent was permanently deleted. The message contains the time of the deletion."""

    exit_code = 3


class NoResultError(AgentError):
    """There is no reply to collect: no query was submitted, or its reply was already collected."""

    exit_code = 3


class NoValueError(AgentError):
    """The agent has no value of that name, or the value cannot be sent to another process."""

    exit_code = 3


class QueryTimeoutError(AgentError):
    """The caller's timeout expired. The agent continues its work, and its reply can be collected later."""

    exit_code = 4


class QueryCycleError(AgentError):
    """The query would cause a deadlock, because the queried agent already waits for the caller.

    The queried agent waits for the caller directly or through other agents.
    """


class WorktreeError(AgentError):
    """Git refused an operation on an agent's worktree. No work tree was changed."""


class BackendError(OrchError):
    """A request to a model failed."""


class RateLimitError(BackendError):
    """The provider refused the request because of its rate limit."""


class ContextOverflowError(BackendError):
    """The request does not fit the model's context window."""


class BackendTimeoutError(BackendError):
    """The provider sent no data before the deadline."""


class TruncatedReplyError(BackendError):
    """The stream ended without a stop reason."""


class BadReplyError(BackendError):
    """The reply does not have the requested type, even after a second request."""


class BudgetExceededError(OrchError):
    """The budget does not cover the next request. The message names the budget and explains how to raise it."""

    exit_code = 5
    outcome = "budget"


class StoreError(OrchError):
    """A file could not be read or written as required."""


class ForeignFileError(StoreError):
    """The file belongs to another program, or has a version that this orch does not read. The file was not changed."""


class LockedError(StoreError):
    """Another process holds the lock of this folder."""


class DamagedError(StoreError):
    """The file is damaged and cannot be repaired while loading."""


class ProtocolError(OrchError):
    """A frame or request violates the protocol."""

    exit_code = 2


class VersionMismatchError(ProtocolError):
    """The two processes use different protocol versions."""


class MessageTooLargeError(ProtocolError):
    """A message exceeds every size limit of the protocol."""


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """An error as data: the name of its class and its message.

    If the error ended a query, `outcome` is the outcome of the query; "" means the default of the class.
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
    """Return `error` as data. For an error that is not an OrchError, the message contains the class name."""
    if isinstance(error, OrchError):
        return ErrorInfo(type(error).__name__, str(error), vars(error).get("outcome", ""))
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ErrorInfo("OrchError", text, "oom" if isinstance(error, MemoryError) else "")


def error_from(info: ErrorInfo) -> OrchError:
    """Return the exception described by `info`. An unknown class becomes OrchError."""
    error = _classes(OrchError).get(info.type, OrchError)(info.message)
    return error.as_outcome(info.outcome) if info.outcome else error


def outcome_of(info: ErrorInfo) -> Outcome:
    """Return the outcome of a query that ended with the error `info`."""
    return info.outcome or _classes(OrchError).get(info.type, OrchError).outcome
