"""The user's trust in files of other people, such as project configurations, extensions, skills and agent types.

The user trusts one version of the content. Changed content is not trusted. The content of a project's configuration
includes the code that it names; see `orch_worker.system.project_code`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.project import ProjectCode
from orch_protocol.core.errors import ConfigError
from orch_worker.hooks.loader import BUILTIN
from orch_worker.system.files import bytes_of
from orch_worker.system.project_code import (
    CONFIG_KEY,
    changed_files,
    digest,
    digests_of,
    file_list,
    pin,
    read_files,
)
from orch_worker.system.trust_file import TrustFile

from . import paths

__all__ = ["Kind", "accept", "project_file", "revoke", "trust", "trust_file", "trusted_code"]


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


def accept(home: Path, kind: Kind, folder: Path, accepted: str | dict[str, str]) -> None:
    """Record that the user accepts the content of `folder` with this digest, or with these digests of files.

    Raises ConfigError or StoreError.
    """
    paths.private_dir(home)
    trust_file(home, kind).accept(folder, accepted)


def revoke(home: Path, kind: Kind, folder: Path) -> bool:
    """Remove the trust in `folder`. Return whether the folder was trusted. Raises ConfigError or StoreError."""
    return trust_file(home, kind).revoke(folder)


# --- Project configurations ---


def project_file(folder: Path) -> Path:
    """Return the path of the configuration of the project in `folder`."""
    return folder / ".orch" / "config.toml"


def trusted_code(folder: Path, content: bytes, values: Mapping[str, Any], home: Path) -> tuple[ProjectCode | None, str]:
    """Return the code that the trusted configuration of `folder` names, and why the folder is not trusted.

    `content` is the configuration file and `values` are its settings. The second value is "" for a trusted folder. If
    the code is trusted, imports of its files in this process use the trusted contents.
    """
    trusted, code = trust_file(home, "project").read(), code_of(folder, values, home)
    file = str(project_file(folder))
    if not trusted.is_known(folder):
        return None, f"{file} is not trusted"
    if code is None:
        accepted = trusted.accepts(folder, digest(content))
        return None, "" if accepted else f"{file} was changed since it was trusted"
    accepted_files = trusted.files_of(folder)
    if accepted_files is None:
        unchanged = trusted.accepts(folder, digest(content))
        reason = "was trusted without the code that it names" if unchanged else "was changed since it was trusted"
        return None, f"{file} {reason}"
    try:
        files = read_files(code, (path for path in accepted_files if path != CONFIG_KEY))
    except ConfigError as error:
        return None, f"the code that {file} names is not trusted: {error}"
    if changed := changed_files(accepted_files, {**digests_of(files), CONFIG_KEY: digest(content)}):
        names = file_list([file if path == CONFIG_KEY else path for path in changed], folder)
        return None, f"{folder} is no longer trusted, because these files changed: {names}"
    pin(code, files)
    return code, ""


def trust(
    folder: Path, home: Path, check: Callable[[Path, bytes, Path], Mapping[str, Any]]
) -> tuple[Path, tuple[str, ...]]:
    """Accept the current configuration of `folder`, and the code that it names.

    Return the path of the configuration, and the paths of the files with code. Raises ConfigError if there is no
    configuration. `check(file, content, home)` returns the settings, and raises an error for an invalid configuration.
    """
    file = project_file(folder)
    try:
        content = bytes_of(file)
    except OSError as error:
        raise ConfigError(f"nothing to trust: {file} cannot be read ({error.strerror})") from error
    try:
        code = code_of(folder, check(file, content, home), home)
        files = digests_of(read_files(code)) if code is not None else {}
    except ConfigError as error:
        raise ConfigError(f"not trusted: {error}") from error
    accept(home, "project", folder, digest(content) if code is None else {**files, CONFIG_KEY: digest(content)})
    return file, tuple(path for path, hash in files.items() if hash)


MODELS: Final = (
    "model",
    "archival.summary.model",
    *(f"hooks.{phase}.{name}" for phase in ("assess", "reflect") for name in ("model", "models")),
    *("hooks.model_router.models", "subagents.chat_models", "subagents.models"),
)
"""Settings that name models. A model can be a class."""
PACKAGES: Final = {"extensions.load": "orch.extensions", "skills.load": "orch.skills"}
"""Settings that name entry points of packages, and the groups of these entry points."""


def code_of(folder: Path, values: Mapping[str, Any], home: Path) -> ProjectCode | None:
    """Return the code and texts that the settings `values` of a configuration in `folder` name. None: they name none.

    Other settings name no code: the skills, extensions and agent types of a project are trusted one by one.
    """
    modules: dict[str, None] = {}
    packages: dict[str, None] = {}
    files: dict[str, None] = {}
    for name in values.get("hooks.load", ()):
        place = name.rpartition(":")[0] or name
        if place.endswith(".py"):
            files[os.path.expanduser(place)] = None
        elif name not in BUILTIN:
            modules[place] = None
    for key in ("policy.function", "memory.provider"):
        module, separator, _ = (values.get(key) or "").partition(":")
        if separator:
            modules[module] = None
    modules |= dict.fromkeys(_modules_of_models(values, home))
    for source in values.get("prompt.templates", ()):
        package, colon, _ = source.partition(":")
        if colon and "/" not in package:
            packages[package] = None
        else:
            files[str(folder / Path(source).expanduser())] = None
    for key, group in PACKAGES.items():
        if values.get(key):
            packages |= dict.fromkeys(_entry_points(group, values[key]))
    if not (modules or packages or files):
        return None
    return ProjectCode(
        os.path.realpath(folder), str(trust_file(home, "project").file), tuple(modules), tuple(packages), tuple(files)
    )


def _modules_of_models(values: Mapping[str, Any], home: Path) -> Iterator[str]:
    names = [values.get(key) for key in MODELS]
    names += (rule.get("model") for key, rules in values.items() if key.endswith(".rules") for rule in _tables(rules))
    found = [name for each in names if each for name in ((each,) if isinstance(each, str) else each)]
    if not found:
        return
    from orch_worker.backends import models
    from orch_worker.backends.custom_classes import find_class
    from orch_worker.backends.registry import PROVIDERS

    providers = {*PROVIDERS, *models.load(home).providers}
    for name in found:
        spec = parse_model(name)
        if spec.provider not in providers and not models.names_address(spec):
            yield (find_class(spec) or spec.provider).partition(":")[0]


def _tables(rules: Any) -> list[Mapping[str, Any]]:
    return [msgspec.to_builtins(rule) for rule in rules or ()]


def _entry_points(group: str, names: Sequence[str]) -> Iterator[str]:
    import importlib.metadata  # This import takes milliseconds, and most users load no packages.

    return (each.value.strip() for each in importlib.metadata.entry_points(group=group) if each.name in names)
