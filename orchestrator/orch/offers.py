"""What a root offers to the sessions of its agents besides what every session has."""

from __future__ import annotations

from .templates import PromptTemplate, Templates

__all__ = ["Offers"]


class Offers:
    """Templates that programs have registered, and what the catalogs of commands were when somebody looked last."""

    def __init__(self) -> None:
        self.registered: Templates | None = None
        """The templates of this program, None where there is none: a daemon's are those that are configured."""
        self.digests: dict[str, str] = {}
        """The digest of each agent's catalog, by id."""

    def templates(self) -> list[PromptTemplate]:
        """Return the templates of this program. Raises ConfigError."""
        return self.registered.all() if self.registered is not None else []
