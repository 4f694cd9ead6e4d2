"""The command `orch wrap` starts a client whose conversations are archived by the proxy."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from orch_protocol.agent.config import Profile
from orch_protocol.core.errors import ConfigError

from ...client.failure import CommandError
from ...config import paths
from ...gateway.clients.table import ANY, CLIENTS, EXAMPLE, client_named
from ...gateway.proxy import connection
from ...gateway.proxy.control import RECEIPT
from ...render.terminal import pluralize
from ..command import CliCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...gateway.proxy.connection import Attachment

__all__ = ["VERBS"]

PROFILES = [*map(str, get_args(Profile)), "off"]


class _WrapCommand(CliCommand):
    """A command whose arguments after the client belong to the client, also those that look like options."""

    rest: tuple[str, ...] = ()

    def run(self, name: str, argv: list[str]) -> int:
        index = 0
        while index < len(argv) and argv[index].startswith("-"):
            index += 2 if argv[index] == "--profile" else 1
        self.rest = tuple(argv[index + 1 :])
        return super().run(name, argv[: index + 1])


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("client", metavar="CLIENT", help=f"one of {', '.join(CLIENTS)}; {ANY} starts any program")
    parser.add_argument("rest", metavar="ARGUMENTS", nargs="*", help="arguments of the client, passed as they are")
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help='how much stays in conversations; "off" changes nothing (default: that of the running proxy, or balanced)',
    )


def _wrap(arguments: argparse.Namespace) -> int:
    from ...gateway.clients import process
    from ...gateway.clients.client import Surroundings
    from ...gateway.proxy.upstreams import client_url, direct_variables

    client = client_named(arguments.client)
    home = paths.home()
    files = paths.private_dir(paths.gateway_dir(paths.private_dir(home)))
    running = connection.call(home, "status")
    plan = client.plan(
        Surroundings(
            arguments=COMMAND.rest,
            env=os.environ,
            cwd=Path.cwd(),
            user_home=Path.home(),
            files=files,
            proxy_url=running["url"] if running else "",
        )
    )
    options = [f"--upstream={name}={url}" for name, url in plan.upstreams.items()]
    if arguments.profile:
        options.append(f"--profile={arguments.profile}")
    program = plan.program or client.program
    if shutil.which(program) is None:
        hint = f": {client.install}" if client.install else ""
        raise CommandError("NotFound", f"{program} is not installed or not in PATH{hint}", 127)
    with connection.start(home, options) as proxy:
        _check(proxy, plan.upstreams, arguments.profile)
        name = secrets.token_hex(8)
        launch = plan.launch(client_url(proxy.base_url, name))
        try:
            env = {**os.environ, **launch.env, **direct_variables(os.environ)}
            code = process.run((program, *launch.arguments), env)
        except OSError as error:
            raise CommandError("NotFound", f"cannot start {program}: {error.strerror or error}", 127) from None
        _report(home, proxy, os.path.basename(program), name)
    return code


def _check(proxy: Attachment, upstreams: Mapping[str, str], profile: str | None) -> None:
    """Raise ConfigError if the proxy, which was running before, has other settings than the client needs."""
    has: dict[str, str] = proxy.status["upstreams"]
    for name, url in upstreams.items():
        if has.get(name) != url.rstrip("/"):
            sends = f"sends {name} to {has[name]}" if name in has else f"has no server {name}"
            raise ConfigError(
                f"the client uses the server {url}, and the running proxy {sends}: end the proxy with "
                f"`orch proxy stop`, or start it with --upstream {name}={url}",
            )
    if profile and proxy.status["profile"] != profile:
        raise ConfigError(
            f"the running proxy has the profile {proxy.status['profile']}: end it with `orch proxy stop`, or leave out "
            f"--profile {profile}",
        )


def _report(home: Path, proxy: Attachment, client: str, name: str) -> None:
    """Print what was saved. The output of the client on stdout stays as it is."""
    from ...gateway.receipt import Receipt
    from .receipt_text import savings_text

    status: dict[str, Any] | None = None
    try:
        status, found = connection.call(home, "status"), connection.call(home, RECEIPT, name)
    except CommandError as error:
        print(f"orch: no receipt: {error}", file=sys.stderr)
        return
    if status is None or status["pid"] != proxy.pid or found is None:
        log = paths.gateway_dir(home) / connection.LOG
        print(
            f"orch: the proxy ended while {client} was running, so requests failed after that; the end of its output "
            f"may be in {log}",
            file=sys.stderr,
        )
        return
    receipt = msgspec.convert(found, Receipt)
    if not receipt.total.requests:
        print(f"orch: no model answered a request of {client} through the proxy", file=sys.stderr)
        return
    conversations = pluralize(len(receipt.conversations), "conversation")
    print(f"orch: {conversations}: {savings_text(receipt.total)}", file=sys.stderr)


COMMAND = _WrapCommand(
    "Start a coding assistant whose conversations are archived, or any program that reads the variables of the SDKs. "
    "It uses the running proxy, or starts one that ends with the last client. No file of the client is changed. At the "
    "end, what was saved is printed on stderr.",
    EXAMPLE,
    _arguments,
    _wrap,
)
VERBS = {"wrap": COMMAND}
