"""The verb about models: which are known, what they take and cost, and whether there is a key."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Container

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import ModelRow
from orch_protocol.core.errors import ConfigError
from orch_worker.backends import models
from orch_worker.backends.local_servers import LOCAL, locate
from orch_worker.backends.models import ModelCatalog

from ...client.connection import replace_invalid_utf8
from ...config import paths
from ...config.models import list_entries, model_entry
from ...render.resources.models import data, page, table
from .. import command
from ..command import CliCommand

__all__ = ["VERBS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", nargs="?", help="PROVIDER:MODEL, a model's name, or local")


def _models(arguments: Namespace) -> int:
    known, keys = models.load(paths.home(os.environ)), {name for name, value in os.environ.items() if value}
    if arguments.name is not None:
        row = _look_up(known, replace_invalid_utf8(arguments.name), keys)
        command.print_result(arguments, data(row), page(row))
        return 0
    rows = list(list_entries(known, keys))
    command.print_result(arguments, list(map(data, rows)), table(rows))
    return 0


def _look_up(known: ModelCatalog, name: str, keys: Container[str]) -> ModelRow:
    """Return what is known of the model that somebody calls `name`. Raises ConfigError."""
    spec = asyncio.run(locate(parse_model(name), known, os.environ)) if name == LOCAL else parse_model(name)
    if spec.provider in known.providers:
        model = spec.model or known.provider(spec.provider).default
        if not model:
            raise ConfigError(f"which model of {spec.provider}? Write {spec.provider}:MODEL")
        return model_entry(known, spec.provider, model, keys)
    found = {provider: known.listed_as(provider, name) or "" for provider in known.providers}
    provider = max(found, key=lambda each: len(found[each]))
    if not found[provider]:
        raise ConfigError(
            f"no listed model begins {name!r}: to say whose it is, write PROVIDER:MODEL, with one of {', '.join(found)}"
        )
    return model_entry(known, provider, name, keys)


VERBS = {
    "models": CliCommand(
        "List the models that are known, or say what is known of one. Asks no daemon.",
        "orch models; orch models local",
        _arguments,
        _models,
    ),
}
