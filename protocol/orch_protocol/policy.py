"""What an agent may do without asking, as data: it is configured, travels in an agent's spec, and is inherited."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

__all__ = ["DANGEROUS", "RANK", "Approval", "Channel", "PolicyConfig", "PolicySpec"]

Approval: TypeAlias = Literal["allow", "ask", "deny"]
Channel: TypeAlias = Literal["api", "cli"]
"""How work comes in: from a Python program, or from the command line."""

RANK: Final[dict[str, int]] = {"allow": 0, "ask": 1, "deny": 2}
"""How restrictive an approval is."""

DANGEROUS: Final = ("bash", "run_python", "run_python_script", "write_file", "replace_in_file")


class PolicyConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What may be done without asking. Paths may begin with `~`, and hold `*`; a bare name is meant in any folder."""

    approval_mode: Approval | None = None
    """For the `dangerous_tools`; None: `ask` on the command line, and `allow` for programs, which granted them."""
    dangerous_tools: tuple[str, ...] = DANGEROUS
    permissions: dict[str, Approval] = {}
    """By tool; what is said here counts for it instead of `approval_mode`."""
    denied_paths: tuple[str, ...] = ()
    allowed_paths: tuple[str, ...] | None = None
    """When set, a call that names any other path is denied."""
    personal_paths: tuple[str, ...] = ("~/Documents", "~/Downloads")
    code_paths: tuple[str, ...] = ("~/projects", "~/src")
    approval_seconds: Annotated[float, Meta(gt=0, le=1e6)] = 300.0
    """How long a question waits for its answer; then the answer is no."""


class PolicySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules that an agent is under, with all agents below it."""

    channel: Channel = "api"
    rules: PolicyConfig = field(default_factory=PolicyConfig)
