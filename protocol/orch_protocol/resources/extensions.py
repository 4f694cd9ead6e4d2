"""Extensions: the manifest, the permissions, and the data with which a worker loads them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from ..core.prompts import Tier
from .slash_commands import WidgetPlace

__all__ = ["ExtensionPermissions", "ExtensionSpec", "Manifest", "WidgetSpec"]

Name: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_-]{0,63}\Z")]


class ExtensionPermissions(Struct, frozen=True, forbid_unknown_fields=True):
    """What an extension may register. Other registrations raise ConfigError.

    - `stages`: the stages of its hooks; `*` means all stages.
    - `tools`, `commands`: names of its tools and slash commands.
    - `tiers`: tiers of the prompt that its hooks may change.
    - `skills`: names of skills in its folder `skills`. The system text lists these skills.
    - `prompts`: templates that its code registers. Templates in its folder `prompts` need no permission.
    """

    stages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()
    skills: tuple[str, ...] = ()
    commands: tuple[Name, ...] = ()
    prompts: tuple[str, ...] = ()


class WidgetSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A widget that front ends may show permanently: the output of the line `command`. See `slash_commands.Widget`."""

    name: Name
    command: str
    title: str = ""
    place: WidgetPlace = "status"


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `extension.toml`. `name` is the name of the folder.

    `keys` maps keys to the lines that front ends may bind to them. `widgets` are widgets that front ends may show.
    """

    name: Name
    version: str = "0"
    description: str = ""
    permissions: ExtensionPermissions = ExtensionPermissions()
    keys: dict[str, str] = {}
    widgets: tuple[WidgetSpec, ...] = ()


class ExtensionSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """An extension of an agent, in the folder `path`. `tools` are the granted tools of the extension.

    `trust` is the file that lists trusted contents, or "" if the extension needs no trust.
    """

    path: str
    manifest: Manifest
    tools: tuple[str, ...] = ()
    trust: str = ""
