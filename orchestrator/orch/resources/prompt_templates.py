"""Templates of prompts: texts with `{{variables}}`, from a program, from files and from packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.prompts import PromptConfig, PromptSpec
from orch_protocol.core.text import scrub

__all__ = [
    "Files",
    "InMemory",
    "Package",
    "PromptTemplate",
    "TemplateCatalog",
    "TemplateProvider",
    "template_places",
    "usable_templates",
]

MOST_BYTES: Final = 1 << 18
SUFFIX: Final = ".md"
NAME: Final = re.compile(r"[\w.:/@-]{1,80}")
VARIABLE: Final = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}|(\\?)(\{\{)")
"""A variable; or braces that begin none, which are meant when a backslash stands before them."""


class PromptTemplate(Struct, frozen=True):
    """A text in which `{{name}}` stands for the value of a variable. `source` says where it is from."""

    name: str
    text: str
    source: str

    @classmethod
    def literal(cls, name: str, text: str, source: str) -> PromptTemplate:
        """Return the template that says `text` as it stands, braces and all."""
        return cls(name, text.replace("{{", "\\{{"), source)

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the names of its variables, in the order in which it has them. Raises ConfigError."""
        found: dict[str, None] = {}
        for match in VARIABLE.finditer(self.text):
            if match[1]:
                found[match[1]] = None
            elif not match[2]:
                line = self.text.count("\n", 0, match.start()) + 1
                raise ConfigError(
                    f"template {self.name!r} ({self.source}), line {line}: invalid variable after {{{{. Write "
                    "{{name}}, or \\{{ for literal braces"
                )
        return tuple(found)

    def render(self, values: Mapping[str, object]) -> str:
        """Return the text with `values`, each put in once and as it is. Raises ConfigError for one that is missing."""
        wanted = self.variables
        if missing := [name for name in wanted if name not in values]:
            raise ConfigError(
                f"template {self.name!r} ({self.source}) needs {', '.join(missing)}: pass "
                f"vars={{{missing[0]!r}: ...}}, --var {missing[0]}=..., or set prompt.vars.{missing[0]}"
            )
        return VARIABLE.sub(lambda match: str(values[match[1]]) if match[1] else match[3], self.text)

    def checked(self, given: Mapping[str, object]) -> None:
        """Raise ConfigError for a value in `given` that no variable takes."""
        if strange := [name for name in given if name not in self.variables]:
            known = ", ".join(self.variables) or "none"
            raise ConfigError(f"template {self.name!r} has no variable {strange[0]!r}; it has {known}")


class TemplateProvider(Protocol):
    """Something that has templates: whoever has this one method is one."""

    def templates(self) -> Iterable[PromptTemplate]:
        """Return the templates there are now. Raises ConfigError."""


class InMemory:
    """Templates of a program: texts by name."""

    def __init__(self, texts: Mapping[str, str], source: str = "this program") -> None:
        self._texts, self._source = dict(texts), source

    def templates(self) -> Iterable[PromptTemplate]:
        """Return them."""
        return [PromptTemplate(name, text, self._source) for name, text in self._texts.items()]


class Files:
    """The `*.md` files of a folder, by their names without the suffix; or one file. None there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def templates(self) -> Iterable[PromptTemplate]:
        """Return them, by name."""
        try:
            files = sorted(self._path.glob(f"*{SUFFIX}")) if self._path.is_dir() else [self._path]
            return [PromptTemplate(path.stem, _text(path.read_bytes()), str(path)) for path in files if path.is_file()]
        except OSError as error:
            raise ConfigError(f"templates in {self._path} cannot be read: {error.strerror or error}") from error


class Package:
    """The `*.md` files in the folder `folder` of an installed package."""

    def __init__(self, package: str, folder: str = "prompts") -> None:
        self._package, self._folder = package, folder

    def templates(self) -> Iterable[PromptTemplate]:
        """Return them, by name."""
        from importlib.resources import files

        where = f"{self._package}:{self._folder}"
        try:
            found = sorted(files(self._package).joinpath(self._folder).iterdir(), key=lambda each: each.name)
            return [
                PromptTemplate(each.name.removesuffix(SUFFIX), _text(each.read_bytes()), where)
                for each in found
                if each.name.endswith(SUFFIX)
            ]
        except (ImportError, OSError, TypeError, ValueError) as error:
            raise ConfigError(f"prompt.templates: {where} cannot be read: {error}") from error


class TemplateCatalog:
    """The templates that can be used by name: those of `config`, the folder `home` and `more`, and those added."""

    def __init__(self, config: PromptConfig, home: Path, *more: TemplateProvider) -> None:
        self._config, self._home = config, home
        self._added = list(more)
        self.added: Callable[[], object] | None = None
        """Called when there are more of them."""

    def add(self, provider: TemplateProvider) -> tuple[str, ...]:
        """Take the templates of `provider` in, all or none, and return their names.

        Raises ConfigError for a name that is taken, or is none, and for a template that cannot be one.
        """
        names = []
        known = {template.name: template for template in self.all()}
        for template in provider.templates():
            if not NAME.fullmatch(template.name):
                raise ConfigError(f"invalid template name {template.name!r}: use letters, digits and _.:/@-")
            if there := known.get(template.name):
                raise ConfigError(f"there is a template {template.name!r} already, of {there.source}")
            template.variables  # noqa: B018 - it says what is wrong with it
            names.append(template.name)
        self._added.append(provider)
        if self.added is not None:
            self.added()
        return tuple(names)

    def all(self) -> list[PromptTemplate]:
        """Return all of them, by name. Raises ConfigError where two have the same."""
        found: dict[str, PromptTemplate] = {}
        for provider in (*template_places(self._config, self._home), *self._added):
            for template in provider.templates():
                if there := found.get(template.name):
                    raise ConfigError(
                        f"there are two templates {template.name!r}, of {there.source} and {template.source}: give one "
                        "another name"
                    )
                found[template.name] = template
        return [found[name] for name in sorted(found)]

    def find(self, name: str) -> PromptTemplate:
        """Return the template that is called `name`, or is the file of that path. Raises ConfigError."""
        if name.endswith(SUFFIX) or "/" in name:
            path = Path(name).expanduser()
            if found := list(Files(path).templates()) if not path.is_dir() else []:
                return found[0]
            raise ConfigError(f"template file {name} does not exist")
        known = {template.name: template for template in self.all()}
        if name not in known:
            raise ConfigError(
                f"unknown template {name!r}; available: {', '.join(known) or 'none'}. To use a template file, pass "
                f"its path, such as {name}{SUFFIX}"
            )
        return known[name]

    def asked(self, name: str | PromptTemplate | None, given: Mapping[str, object] | None) -> PromptSpec:
        """Return what an agent is told by the template `name`, or that one, None: by the configured one, if there is.

        `given` are values of its variables; others are the configured ones. Raises ConfigError.
        """
        if not isinstance(given, Mapping | None):
            raise ConfigError(f"vars is a mapping of names to values, not {given!r}")
        if not isinstance(name, str | PromptTemplate | None):
            raise ConfigError(f"prompt_template is a template, its name or its file, not {name!r}")
        name = name or self._config.template
        if name is None:
            if given:
                raise ConfigError(
                    f"vars contains {next(iter(given))!r}, but no template is selected: pass prompt_template"
                )
            return PromptSpec(rules=self._config.rules)
        template = name if isinstance(name, PromptTemplate) else self.find(name)
        template.checked(given or {})
        text = scrub(template.render({**self._config.vars, **(given or {})})).strip()
        if not text:
            raise ConfigError(f"template {template.name!r} ({template.source}) is empty")
        return PromptSpec(text, f"template {template.name} ({template.source})", self._config.rules)


def usable_templates(templates: Iterable[PromptTemplate]) -> tuple[list[PromptTemplate], list[str]]:
    """Return those of `templates` that can be filled in, and of each other one what is wrong with it."""
    found, faults = [], []
    for each in templates:
        try:
            each.variables  # noqa: B018 - it says what is wrong with it
            found.append(each)
        except ConfigError as error:
            faults.append(str(error))
    return found, faults


def template_places(config: PromptConfig, home: Path) -> list[TemplateProvider]:
    """Return where the configuration looks for templates: folders, files, `package:folder`; and `prompts` in `home`."""
    found: list[TemplateProvider] = []
    for place in config.templates:
        package, colon, folder = place.partition(":")
        if colon and "/" not in package:
            found.append(Package(package, folder or "prompts"))
        else:
            path = Path(place).expanduser()
            if not path.exists():
                raise ConfigError(f"prompt.templates: {place} does not exist")
            found.append(Files(path))
    return [*found, *([Files(home / "prompts")] if (home / "prompts").is_dir() else [])]


def _text(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise ConfigError(f"a template of {len(data):,} bytes is too large: at most {MOST_BYTES:,}")
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n").strip()
