"""Extensions as data: what one says of itself, what it may do, and where a worker finds it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from ..core.prompts import Tier
from .slash_commands import WidgetPlace

__all__ = ["ExtensionSpec", "Manifest", "Permissions", "WidgetSpec"]

Name: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_-]{0,63}\Z")]


class Permissions(Struct, frozen=True, forbid_unknown_fields=True):
    """All that an extension may do; what is not here is refused when it registers it, and when it does it.

    `stages` are those at which its hooks may be called, `*` all of them; `tools` the tools that it may bring; `tiers`
    those of the prompt whose text its hooks may change; `skills` those in its folder `skills`, of which every agent's
    system text tells; `commands` those of sessions that it may bring; `prompts` the templates that its code may
    register (those in its folder `prompts` are there to be asked for by name). `reads` and `writes` are files and
    folders, as seen from the agent's own; what is written may be read, and so may its own folder and Python's.
    `network` names hosts, `*` all of them; with `programs` it may start some, which nobody holds to any of this.
    """

    stages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()
    skills: tuple[str, ...] = ()
    commands: tuple[Name, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    programs: bool = False
    prompts: tuple[str, ...] = ()


class WidgetSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that front ends may show all the time: what the line `command` says; see `slash.Widget`."""

    name: Name
    command: str
    title: str = ""
    place: WidgetPlace = "status"


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What `extension.toml` says. `name` is that of its folder. `keys` are lines that front ends may bind to a key
    each, and `widgets` what they may show."""

    name: Name
    version: str = "0"
    description: str = ""
    permissions: Permissions = Permissions()
    keys: dict[str, str] = {}
    widgets: tuple[WidgetSpec, ...] = ()


class ExtensionSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """An extension that an agent runs with, in the folder `path`. Of its tools the agent was granted `tools`.

    `trust` is the file that says which contents are trusted, "" where they need not be.
    """

    path: str
    manifest: Manifest
    tools: tuple[str, ...] = ()
    trust: str = ""
