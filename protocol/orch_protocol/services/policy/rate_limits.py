"""Services for rate limits: report refused requests, and admit requests. Each model has one lane."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from ..service import EVERY_AGENT, AgentFields, Empty, Service

__all__ = [
    "ADMIT_REQUEST",
    "RELEASE_REQUEST",
    "REPORT_RATE_LIMIT",
    "AdmitRequest",
    "ModelRefused",
    "RequestAdmitted",
    "RequestEnded",
]


class ModelRefused(Struct, frozen=True, forbid_unknown_fields=True):
    """A provider refused a request because of its rate limit.

    `lane` is `provider:model`. `wait` is the waiting time in seconds that the provider requires. None means that the
    provider gave no time.
    """

    lane: str
    wait: Annotated[float, Meta(ge=0)] | None = None


class AdmitRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for permission to send the next request to `lane`.

    The root replies as soon as the worker may send the request.
    """

    lane: str


class RequestAdmitted(Struct, frozen=True):
    """The worker may send the request. Pass `id` to RequestEnded.

    If `id` is "", the lane is no longer limited: stop asking.
    """

    id: str


class RequestEnded(Struct, frozen=True, forbid_unknown_fields=True):
    """The admitted request `id` has ended. `ok`: the model answered the request."""

    lane: str
    id: str
    ok: bool


REPORT_RATE_LIMIT: Final = Service(
    "report_rate_limit",
    ModelRefused,
    Empty,
    EVERY_AGENT,
    "Report that a provider refused a request for its rate limit.",
    AgentFields(free=("lane", "wait")),
)
ADMIT_REQUEST: Final = Service(
    "admit_request",
    AdmitRequest,
    RequestAdmitted,
    EVERY_AGENT,
    "Wait for permission to send a rate-limited request.",
    AgentFields(free=("lane",)),
)
RELEASE_REQUEST: Final = Service(
    "release_request",
    RequestEnded,
    Empty,
    EVERY_AGENT,
    "Report that an admitted request has ended.",
    AgentFields(free=("lane", "id", "ok")),
)
