"""The command `orch proxy` runs the gateway as an HTTP server in the foreground."""

from __future__ import annotations

import gc
import os
import sys
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from orch_protocol.agent.config import Profile

from ...config import paths
from ...gateway.proxy import connection
from ...render.columns import format_columns
from ...render.terminal import safe, to_json
from .. import command
from ..command import CliCommand, CommandGroup
from .proxy_stats import STATS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ...gateway.proxy.run import ProxyStatus

__all__ = ["VERBS"]

TOKEN_VARIABLE = "ORCH_PROXY_TOKEN"
MAX_PORT = 65535
PROFILES = [*map(str, get_args(Profile)), "off"]


def _port(text: str) -> int:
    number = command.non_negative_int(text)
    if number > MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port: use a number of at most {MAX_PORT}")
    return number


def _run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--port", metavar="N", type=_port, help="port; 0 selects a free one (default: 6724)")
    parser.add_argument("--host", help="address to listen on; others than loopback need a token (default: 127.0.0.1)")
    parser.add_argument(
        "--profile", choices=PROFILES, help='how much stays in conversations; "off" changes nothing (default: balanced)'
    )
    parser.add_argument(
        "--upstream",
        metavar="NAME=URL",
        action="append",
        help="replace a model server, or add one that clients reach with the path /NAME; repeatable",
    )
    parser.add_argument(
        "--token",
        help=f"what clients have to send; other users see arguments of processes, so prefer {TOKEN_VARIABLE}",
    )
    parser.add_argument(
        "--until-detached", action="store_true", help="end when the last program that attached to the proxy has ended"
    )


def _run(arguments: Namespace) -> int:
    from ...gateway.proxy.run import ProxyOptions, log_to_stderr, run

    given = {
        "host": arguments.host,
        "port": arguments.port,
        "profile": arguments.profile,
        "token": arguments.token if arguments.token is not None else os.environ.get(TOKEN_VARIABLE),
        "upstreams": tuple(arguments.upstream or ()),
        "until_detached": arguments.until_detached,
    }
    options = ProxyOptions(**{name: value for name, value in given.items() if value is not None})

    def ready(status: ProxyStatus) -> None:
        command.print_result(arguments, _without_token(msgspec.to_builtins(status)), _greeting(status))
        sys.stdout.flush()

    gc.enable()  # The command line runs without it.
    log_to_stderr()
    run(paths.home(), options, ready, os.environ)
    return 0


def _greeting(status: ProxyStatus) -> str:
    from ...gateway.proxy.upstreams import client_variables

    address = _without_token(msgspec.to_builtins(status))["base_url"]
    variables = "\n".join(f"  {name}={value}" for name, value in client_variables(address).items())
    return (
        f"orch proxy: {status.url}, process {status.pid}, profile {status.profile}\n"
        f"Start clients with these variables:\n{variables}\nCtrl-C or `orch proxy stop` ends the proxy."
    )


def _without_token(status: dict[str, Any]) -> dict[str, Any]:
    """Return `status` with the name of a variable in place of the token, because the output may be a log file."""
    from ...gateway.proxy.access import TOKEN_PREFIX

    if status["base_url"] == status["url"]:
        return status
    return status | {"base_url": f"{status['url']}{TOKEN_PREFIX}${TOKEN_VARIABLE}"}


def _no_arguments(_parser: ArgumentParser) -> None:
    pass


def _stop(arguments: Namespace) -> int:
    pid = connection.stop(paths.home())
    if pid is None:
        print("orch: no proxy is running", file=sys.stderr)
    command.print_result(arguments, {"pid": pid}, "" if pid is None else str(pid))
    return 0


def _status(arguments: Namespace) -> int:
    status: dict[str, Any] | None = connection.call(paths.home(), "status")
    if status is None:
        print("orch: no proxy is running: orch proxy", file=sys.stderr)
        if arguments.json:
            print(to_json(None))
        return 3
    status = _without_token(status)
    upstreams = {f"upstream {name}": url for name, url in status["upstreams"].items()}
    rows = {name: value for name, value in status.items() if name != "upstreams"} | upstreams
    text = format_columns([[name, safe(str(value))] for name, value in rows.items()])
    command.print_result(arguments, status, text)
    return 0


VERBS = {
    "proxy": CommandGroup(
        "Archive the conversations of any client of a model API. The client needs another base URL and nothing else.",
        "orch proxy --port 6724",
        {
            "run": (
                "run the proxy in the foreground (default)",
                CliCommand(
                    "Run the proxy in the foreground. It passes requests to the model servers, with old turns of long "
                    "conversations archived. The keys of clients pass through and are not stored.",
                    "orch proxy --port 6724 --profile roomy",
                    _run_arguments,
                    _run,
                ),
            ),
            "stop": (
                "stop the proxy",
                CliCommand("Stop the proxy and wait for its end.", "orch proxy stop", _no_arguments, _stop),
            ),
            "stats": ("show what conversations cost with and without the proxy", STATS),
            "status": (
                "show the address and the settings of the proxy",
                CliCommand("Show the running proxy.", "orch proxy status", _no_arguments, _status),
            ),
        },
        default="run",
    )
}
