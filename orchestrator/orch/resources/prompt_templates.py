"""Prompt templates are texts with `{{variables}}` from a program, from files and from packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from orch_protocol.core.errors import ConfigError, EntryNotFoundError
from orch_protocol.core.prompts import PromptConfig, PromptSpec
from orch_protocol.core.text import decode_text, scrub

__all__ = [
    "PROGRAM",
    "Files",
    "InMemory",
    "Package",
    "PromptTemplate",
    "TemplateCatalog",
    "TemplateProvider",
    "provider_of",
    "template_sources",
    "usable_templates",
]

MAX_BYTES: Final = 1 << 18
SUFFIX: Final = ".md"
PROGRAM: Final = "this program"
NAME: Final = re.compile(r"[\w.:/@-]{1,80}")
VARIABLE: Final = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}|(\\?)(\{\{)")
"""A variable, or braces that begin no variable. Braces after a backslash are literal."""


class PromptTemplate(Struct, frozen=True):
    """A text in which `{{name}}` is replaced with the value of the variable `name`.

    `source` says where the text comes from.
    """

    name: str
    text: str
    source: str = PROGRAM

    @classmethod
    def literal(cls, name: str, text: str, source: str) -> PromptTemplate:
        """Return a template with the literal text `text`. Braces in this text have no special meaning."""
        return cls(name, text.replace("{{", "\\{{"), source)

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables, in order of appearance. Raises ConfigError."""
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
        """Return the text with `values` inserted unchanged. Raises ConfigError for a missing value."""
        variables = self.variables
        if missing := [name for name in variables if name not in values]:
            raise ConfigError(
                f"template {self.name!r} ({self.source}) needs {', '.join(missing)}: pass "
                f"vars={{{missing[0]!r}: ...}}, --var {missing[0]}=..., or set prompt.vars.{missing[0]}"
            )
        return VARIABLE.sub(lambda match: str(values[match[1]]) if match[1] else match[3], self.text)

    def check_names(self, values: Mapping[str, object]) -> None:
        """Raise ConfigError if a name in `values` is not a variable of the template."""
        if unknown := [name for name in values if name not in self.variables]:
            known = ", ".join(self.variables) or "none"
            raise ConfigError(f"template {self.name!r} has no variable {unknown[0]!r}; it has {known}")


class TemplateProvider(Protocol):
    """Protocol of objects that provide templates."""

    def templates(self) -> Iterable[PromptTemplate]:
        """Return the current templates. Raises ConfigError."""


class InMemory:
    """Templates of a program."""

    def __init__(self, *templates: PromptTemplate) -> None:
        self._templates = templates

    def templates(self) -> Iterable[PromptTemplate]:
        """Return the templates."""
        return self._templates


def provider_of(template: PromptTemplate | TemplateProvider) -> TemplateProvider:
    """Return `template` as a provider. Raises ConfigError if it is neither a PromptTemplate nor a provider."""
    if isinstance(template, PromptTemplate):
        return InMemory(template)
    if not callable(getattr(template, "templates", None)):
        raise ConfigError(f"pass a name and a text, a PromptTemplate, or an object with templates(); got {template!r}")
    return template


class Files:
    """The `*.md` files of a folder, or a single file. The file name without suffix is the name of the template.

    A missing folder has no templates.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def templates(self) -> Iterable[PromptTemplate]:
        """Return the templates, by name."""
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
        """Return the templates, by name."""
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
    """The available templates by name.

    The templates come from `config`, from the folder `prompts` in `home`, from `providers`, and from `add`.
    """

    def __init__(self, config: PromptConfig, home: Path, *providers: TemplateProvider) -> None:
        self._config, self._home = config, home
        self._added = list(providers)
        self.changed: Callable[[], object] = lambda: None
        """Called after templates were added or removed."""

    def add(self, provider: TemplateProvider) -> tuple[str, ...]:
        """Add the templates of `provider` and return their names. If one template cannot be added, none is added.

        Raises ConfigError for an invalid name, a name that is in use, or an invalid template.
        """
        names = []
        known = {template.name: template for template in self.all()}
        for template in provider.templates():
            if not NAME.fullmatch(template.name):
                raise ConfigError(f"invalid template name {template.name!r}: use letters, digits and _.:/@-")
            if existing := known.get(template.name):
                raise ConfigError(f"a template named {template.name!r} already exists in {existing.source}")
            template.variables  # noqa: B018 - raises the error for invalid variables
            names.append(template.name)
        self._added.append(provider)
        self.changed()
        return tuple(names)

    def remove(self, provider: TemplateProvider) -> None:
        """Remove a provider and its templates."""
        self._added.remove(provider)
        self.changed()

    def all(self) -> list[PromptTemplate]:
        """Return all templates, by name. Raises ConfigError if two have the same name."""
        found: dict[str, PromptTemplate] = {}
        for provider in (*template_sources(self._config, self._home), *self._added):
            for template in provider.templates():
                if existing := found.get(template.name):
                    raise ConfigError(
                        f"two templates are named {template.name!r}, of {existing.source} and {template.source}: "
                        "rename one of the two"
                    )
                found[template.name] = template
        return [found[name] for name in sorted(found)]

    def find(self, name: str) -> PromptTemplate:
        """Return the template with the name or file path `name`. Raises ConfigError, EntryNotFoundError."""
        if name.endswith(SUFFIX) or "/" in name:
            path = Path(name).expanduser()
            if found := list(Files(path).templates()) if not path.is_dir() else []:
                return found[0]
            raise EntryNotFoundError(f"template file {name} does not exist")
        known = {template.name: template for template in self.all()}
        if name not in known:
            raise EntryNotFoundError(
                f"unknown template {name!r}; available: {', '.join(known) or 'none'}. To use a template file, pass "
                f"its path, such as {name}{SUFFIX}"
            )
        return known[name]

    def prompt_spec(self, name: str | PromptTemplate | None, values: Mapping[str, object] | None) -> PromptSpec:
        """Return the prompt for the template `name`. If `name` is None, use the configured template, if any.

        `values` contains values of variables. Other values come from the configuration. Raises ConfigError, and
        EntryNotFoundError for the argument `name`.
        """
        if not isinstance(values, Mapping | None):
            raise ConfigError(f"vars must be a mapping of names to values; got {values!r}")
        if not isinstance(name, str | PromptTemplate | None):
            raise ConfigError(f"prompt_template must be a template, its name or its file; got {name!r}")
        is_configured, name = not name, name or self._config.template
        if name is None:
            if values:
                raise ConfigError(
                    f"vars contains {next(iter(values))!r}, but no template is selected: pass prompt_template"
                )
            return PromptSpec(rules=self._config.rules)
        try:
            template = name if isinstance(name, PromptTemplate) else self.find(name)
        except EntryNotFoundError as error:
            if is_configured:
                raise ConfigError(f"prompt.template: {error}") from None
            raise
        template.check_names(values or {})
        text = scrub(template.render({**self._config.vars, **(values or {})})).strip()
        if not text:
            raise ConfigError(f"template {template.name!r} ({template.source}) is empty")
        return PromptSpec(text, f"template {template.name} ({template.source})", self._config.rules)


def usable_templates(templates: Iterable[PromptTemplate]) -> tuple[list[PromptTemplate], list[str]]:
    """Return the valid templates, and an error message for each invalid template."""
    found, problems = [], []
    for each in templates:
        try:
            each.variables  # noqa: B018 - raises the error for invalid variables
            found.append(each)
        except ConfigError as error:
            problems.append(str(error))
    return found, problems


def template_sources(config: PromptConfig, home: Path) -> list[TemplateProvider]:
    """Return the configured sources of templates, and the folder `prompts` in `home`.

    A configured source is a folder, a file, or `package:folder`.
    """
    found: list[TemplateProvider] = []
    for source in config.templates:
        package, colon, folder = source.partition(":")
        if colon and "/" not in package:
            found.append(Package(package, folder or "prompts"))
        else:
            path = Path(source).expanduser()
            if not path.exists():
                raise ConfigError(f"prompt.templates: {source} does not exist")
            found.append(Files(path))
    return [*found, *([Files(home / "prompts")] if (home / "prompts").is_dir() else [])]


def _text(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise ConfigError(f"a template of {len(data):,} bytes is too large: at most {MAX_BYTES:,}")
    return decode_text(data, lossy=True).strip()
