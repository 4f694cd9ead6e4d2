"""What workers and their root say of models that refuse requests for being too many. A lane is one model."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["AdmitRequest", "ModelRefused", "RequestAdmitted", "RequestEnded"]


class ModelRefused(Struct, frozen=True, forbid_unknown_fields=True):
    """A model refused a request for being one too many. `wait` is the seconds that it asks to wait, None if it does not
    say. `lane` is who was asked, as `provider:model`."""

    lane: str
    wait: Annotated[float, Meta(ge=0)] | None = None


class AdmitRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """May the next request to `lane` be made? The answer comes when it may."""

    lane: str


class RequestAdmitted(Struct, frozen=True):
    """The request may be made. Pass `id` to RequestEnded; with "" nothing is counted and no more asking is needed."""

    id: str


class RequestEnded(Struct, frozen=True, forbid_unknown_fields=True):
    """The request that was admitted as `id` is over; `ok` when it was answered."""

    lane: str
    id: str
    ok: bool
