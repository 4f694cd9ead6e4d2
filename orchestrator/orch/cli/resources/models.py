"""The command `orch models` shows known models, their limits and prices, and whether a key is set."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Container

from orch_protocol.agent.config import parse_model
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models.models import ModelRow
from orch_worker.backends import models
from orch_worker.backends.custom_providers import with_installed
from orch_worker.backends.local_servers import LOCAL, locate
from orch_worker.backends.models import ModelCatalog

from ...client.connection import replace_invalid_utf8
from ...config import paths
from ...config.models import list_entries, local_entry, model_entry
from ...render.resources.models import data, page, table
from .. import command
from ..command import CliCommand

__all__ = ["VERBS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="MODEL", nargs="?", help='PROVIDER:MODEL, a model name or a part of it, or "local"'
    )


def _models(arguments: Namespace) -> int:
    catalog = with_installed(models.load(paths.home(os.environ)))
    keys = {name for name, value in os.environ.items() if value}
    if arguments.name is not None:
        name = replace_invalid_utf8(arguments.name)
        if (row := _find_model(catalog, name, keys)) is not None:
            command.print_result(arguments, data(row), page(row))
            return 0
        rows = [each for each in list_entries(catalog, keys) if name.lower() in each.model.lower()]
        if not rows:
            raise ConfigError(
                f"no listed model contains {name!r}: write PROVIDER:MODEL, with a provider out of "
                f"{', '.join(catalog.providers)}"
            )
    else:
        rows = list(list_entries(catalog, keys))
    command.print_result(arguments, list(map(data, rows)), table(rows))
    return 0


def _find_model(catalog: ModelCatalog, name: str, keys: Container[str]) -> ModelRow | None:
    """Return the model `name`. Return None if `name` has no provider and begins with no listed model."""
    spec = asyncio.run(locate(parse_model(name), catalog, os.environ)) if name == LOCAL else parse_model(name)
    if (row := asyncio.run(local_entry(spec, catalog, os.environ))) is not None:
        return row
    if spec.provider in catalog.providers:
        model = spec.model or catalog.provider(spec.provider).default
        if not model:
            raise ConfigError(f"no model given for provider {spec.provider}; write {spec.provider}:MODEL")
        return model_entry(catalog, spec.provider, model, keys)
    listed = {provider: catalog.listed_as(provider, name) or "" for provider in catalog.providers}
    provider = max(listed, key=lambda each: len(listed[each]))
    return model_entry(catalog, provider, name, keys) if listed[provider] else None


VERBS = {
    "models": CliCommand(
        "List known models or those whose name contains a text, or show one. Works without a daemon.",
        "orch models sonnet; orch models local",
        _arguments,
        _models,
    ),
}
