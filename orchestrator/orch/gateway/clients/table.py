"""The clients that `orch wrap` knows."""

from __future__ import annotations

from typing import Final

from orch_protocol.core.errors import ConfigError

from ..proxy.upstreams import ANTHROPIC, OPENAI, client_variables
from .claude import CLAUDE
from .client import ANTHROPIC_VARIABLE, OPENAI_VARIABLE, Client, Launch, Plan, Surroundings, own_url
from .codex import CODEX
from .pi import PI

__all__ = ["ANY", "CLIENTS", "EXAMPLE", "client_named"]


def _plan_any(surroundings: Surroundings) -> Plan:
    """Return the plan for a program that reads the variables of the SDKs. Its arguments begin with its name."""
    if not surroundings.arguments:
        raise ConfigError(f"orch wrap {ANY} needs a program: orch wrap {ANY} PROGRAM [ARGUMENTS]")
    names = {ANTHROPIC: ANTHROPIC_VARIABLE, OPENAI: OPENAI_VARIABLE}
    own = {name: own_url(surroundings.env.get(names[name]), surroundings.proxy_url) for name in names}
    program, *arguments = surroundings.arguments
    return Plan(
        lambda base_url: Launch(tuple(arguments), client_variables(base_url)),
        {name: url for name, url in own.items() if url},
        program,
    )


ANY: Final = "any"
EXAMPLE: Final = "orch wrap claude --continue"
CLIENTS: Final = {client.name: client for client in (CLAUDE, CODEX, PI, Client(ANY, "", "", _plan_any))}


def client_named(name: str) -> Client:
    """Return a client. Raises ConfigError for an unknown one."""
    client = CLIENTS.get(name)
    if client is None:
        known = ", ".join(each for each in CLIENTS if each != ANY)
        raise ConfigError(
            f"orch wrap does not know the client {name!r}; it knows {known}. A program that reads "
            f"{ANTHROPIC_VARIABLE} or {OPENAI_VARIABLE} can be started with: orch wrap {ANY} {name}"
        )
    return client
