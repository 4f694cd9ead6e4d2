"""Extensions as data: what one says of itself, what it may do, and where a worker finds it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from ..core.prompts import Tier
from .slash_commands import WidgetPlace

__all__ = ["ExtensionPermissions", "ExtensionSpec", "Manifest", "WidgetSpec"]

Name: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_-]{0,63}\Z")]


class ExtensionPermissions(Struct, frozen=True):
    """What an extension may register. Other registrations raise ConfigError.

    `stages`: where its hooks may be called, `*` for all. `tools`, `commands`: names of tools and slash commands.
    `tiers`: tiers of the prompt that its hooks may change. `skills`: skills of its folder `skills` that are listed in
    the system text. `prompts`: templates that its code registers; those in its folder `prompts` need no permission.
    Unknown fields are ignored here, so that specs in older journals decode; `read_manifest` rejects them.
    """

    stages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()
    skills: tuple[str, ...] = ()
    commands: tuple[Name, ...] = ()
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
    permissions: ExtensionPermissions = ExtensionPermissions()
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
