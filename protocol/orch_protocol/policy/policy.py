"""What an agent may do without asking, as data: it is configured, travels in an agent's spec, and is inherited."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from ..core.taint import TaintConfig, TaintLabel

__all__ = [
    "DANGEROUS",
    "EXIT_PLAN",
    "RANK",
    "TASK_CREATE",
    "Approval",
    "Channel",
    "DataClass",
    "Model",
    "Operation",
    "PolicyCall",
    "PolicyConfig",
    "PolicySpec",
    "Verdict",
]

Approval: TypeAlias = Literal["allow", "ask", "deny"]
Operation: TypeAlias = Literal["read", "write", "exec"]
DataClass: TypeAlias = Literal["random", "code", "personal"]
Model: TypeAlias = Literal["any", "local"]
Channel: TypeAlias = Literal["api", "cli"]
"""How work comes in: from a Python program, or from the command line."""

RANK: Final[dict[str, int]] = {"allow": 0, "ask": 1, "deny": 2}
"""How restrictive an approval is."""

DANGEROUS: Final = ("bash", "run_python", "run_python_script", "write_file", "replace_in_file")

EXIT_PLAN: Final = "exit_plan_mode"
"""The tool that hands a plan in."""
TASK_CREATE: Final = "task_create"
"""The tool that makes a list of tasks."""


class Verdict(Struct, frozen=True):
    """What a source says of a call, and why. `model` local: what the call brings is for a local model only.

    `data` is the class of what the call touches.
    """

    approval: Approval = "allow"
    model: Model = "any"
    reason: str = ""
    data: DataClass = "random"


class PolicyCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call as a policy function sees it: what it does, the paths it names (resolved), who makes it and where.

    `input` is a copy: what is done to it changes nothing. `data` is the class by the configured paths. `marks` are what
    its conversation holds that is untrusted or sensitive, and what it has done.
    """

    tool: str
    input: dict[str, Any]
    paths: tuple[str, ...] = ()
    operation: Operation = "exec"
    data: DataClass = "random"
    agent_id: str = ""
    depth: int = 0
    folder: str = ""
    marks: tuple[TaintLabel, ...] = ()


class PolicyConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What may be done without asking. Paths may begin with `~`, and hold `*`; a bare name is meant in any folder."""

    approval_mode: Approval | None = None
    """For the `dangerous_tools`; None: `ask` on the command line, and `allow` for programs, which granted them."""
    dangerous_tools: tuple[str, ...] = DANGEROUS
    permissions: dict[str, Approval] = {}
    """By tool; what is said here counts for it instead of `approval_mode`."""
    denied_paths: tuple[str, ...] = ()
    require_denied_paths: bool = False
    """Refuse commands where denied paths cannot be made unreadable, instead of matching them by name only."""
    usable_credentials: tuple[str, ...] = ()
    """Credential paths that commands can read without approval, such as `~/.ssh`."""
    allowed_paths: tuple[str, ...] | None = None
    """When set, a call that names any other path is denied."""
    personal_paths: tuple[str, ...] = ("~/Documents", "~/Downloads")
    code_paths: tuple[str, ...] = ("~/projects", "~/src")
    approval_seconds: Annotated[float, Meta(gt=0, le=1e6)] = 300.0
    """How long a question waits for its answer; then the answer is no."""
    dry_run: bool = False
    """Run no tool: each call is judged, and told of."""
    no_local_model: Literal["deny", "ask"] = field(default="deny", name="without_local")
    """The decision about a call with data for local models only when there is no local model."""
    function: str | None = None
    """`package.module:name` of a function that judges each call too, in the agent's process; see Verdict."""
    taint: TaintConfig = field(default_factory=TaintConfig)
    """What must not come together in one agent unasked."""


class PolicySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules that an agent is under, with all agents below it. `asks_root`: a function in the root judges too."""

    channel: Channel = "api"
    rules: PolicyConfig = field(default_factory=PolicyConfig)
    asks_root: bool = False
