"""What workers and their root say of models that refuse requests for being too many. A lane is one model."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Admit", "Admitted", "LaneLeft", "LaneRefused"]


class LaneRefused(Struct, frozen=True, forbid_unknown_fields=True):
    """A model refused a request for being one too many. `wait` is the seconds that it asks to wait, None if it does not
    say. `lane` is who was asked, as `provider:model`."""

    lane: str
    wait: Annotated[float, Meta(ge=0)] | None = None


class Admit(Struct, frozen=True, forbid_unknown_fields=True):
    """May the next request to `lane` be made? The answer comes when it may."""

    lane: str


class Admitted(Struct, frozen=True):
    """It may. `id` is to be given back with LaneLeft; "" when nobody counts any more, nor need anybody ask again."""

    id: str


class LaneLeft(Struct, frozen=True, forbid_unknown_fields=True):
    """The request that was admitted as `id` is over; `ok` when it was answered."""

    lane: str
    id: str
    ok: bool
