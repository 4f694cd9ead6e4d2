"""The user's trust in files of other people, such as project configurations, extensions, skills and agent types.

The user trusts one version of the content. Changed content is not trusted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from orch_protocol.core.errors import ConfigError
from orch_worker.system.files import bytes_of
from orch_worker.system.trust_file import TrustFile

from . import paths

__all__ = ["Kind", "accept", "is_trusted", "project_file", "revoke", "trust", "trust_file"]


Kind = Literal["project", "extension", "skill", "agent type"]

FILES: Final[dict[Kind, tuple[str, str]]] = {
    "project": ("trust.json", "trust the folders you need again"),
    "extension": ("trusted_extensions.json", "trust again what you need"),
    "skill": ("trusted_skills.json", "trust again what you need"),
    "agent type": ("trusted_agents.json", "trust again what you need"),
}
"""The name of each trust file, and the remedy after a damaged trust file was removed."""


def trust_file(home: Path, kind: Kind) -> TrustFile:
    """Return the trust file in `home` for folders of this `kind`."""
    name, then = FILES[kind]
    return TrustFile(home / name, then)


def accept(home: Path, kind: Kind, folder: Path, digest: str) -> None:
    """Record that the user accepts the content of `folder` with this digest. Raises ConfigError or StoreError."""
    paths.private_dir(home)
    trust_file(home, kind).accept(folder, digest)


def revoke(home: Path, kind: Kind, folder: Path) -> bool:
    """Remove the trust in `folder`. Return whether the folder was trusted. Raises ConfigError or StoreError."""
    return trust_file(home, kind).revoke(folder)


# --- Project configurations ---


def project_file(folder: Path) -> Path:
    """Return the path of the configuration of the project in `folder`."""
    return folder / ".orch" / "config.toml"


def is_trusted(folder: Path, content: bytes, home: Path) -> bool:
    """Return whether the user accepted exactly this `content` as the configuration of `folder`."""
    return trust_file(home, "project").read().accepts(folder, hashlib.sha256(content).hexdigest())


def trust(folder: Path, home: Path, check: Callable[[Path, bytes, Path], None]) -> Path:
    """Accept the current configuration of `folder` and return its path.

    Raises ConfigError if there is no configuration. `check(file, content, home)` raises an error for an invalid
    configuration.
    """
    file = project_file(folder)
    try:
        content = bytes_of(file)
    except OSError as error:
        raise ConfigError(f"nothing to trust: {file} cannot be read ({error.strerror})") from error
    try:
        check(file, content, home)
    except ConfigError as error:
        raise ConfigError(f"not trusted: {error}") from error
    accept(home, "project", folder, hashlib.sha256(content).hexdigest())
    return file
