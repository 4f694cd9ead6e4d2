"""Policy rules: what an agent may do without approval. Subagents inherit these rules."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from ..core.taint import Bit, TaintConfig, TaintLabel
from .builtin_tools import CODE_TOOLS, FILE_WRITERS, Operation

__all__ = [
    "DANGEROUS",
    "EXIT_PLAN",
    "RANK",
    "TASK_CREATE",
    "Approval",
    "Channel",
    "DataClass",
    "FilterRules",
    "Model",
    "PolicyCall",
    "PolicyConfig",
    "PolicySpec",
    "Verdict",
]

Approval: TypeAlias = Literal["allow", "ask", "deny"]
DataClass: TypeAlias = Literal["random", "code", "personal"]
Model: TypeAlias = Literal["any", "local"]
Channel: TypeAlias = Literal["api", "person", "cli"]
"""The origin of requests: a Python program, a program whose calls a person approves, or the command line."""

RANK: Final[dict[str, int]] = {"allow": 0, "ask": 1, "deny": 2}
"""The order of the approval modes. A higher number is more restrictive."""

DANGEROUS: Final = (*CODE_TOOLS, *FILE_WRITERS)
"""The default of `dangerous_tools`: the tools that run code or write files."""

EXIT_PLAN: Final = "exit_plan_mode"
"""The tool that submits a plan for approval."""
TASK_CREATE: Final = "task_create"
"""The tool that creates a task list."""


class Verdict(Struct, frozen=True):
    """The verdict of one policy source on a call.

    If `model` is "local", the call's data may be sent to local models only. `data` is the class of the data that the
    call accesses.
    """

    approval: Approval = "allow"
    model: Model = "any"
    reason: str = ""
    data: DataClass = "random"


class PolicyCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call as a policy function sees it: the operation, the resolved paths, the caller and its folder.

    `input` is a copy, so a change of `input` has no effect. `data` is the data class of the paths. `marks` are the
    taint labels of the conversation.
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
    """Which calls need approval. Paths may begin with `~` and contain `*`, and `**` for any number of folders.

    A name without a folder matches in any folder. Variables are not expanded.
    """

    approval_mode: Approval | None = None
    """The approval mode of the `dangerous_tools`, and of the tools of an executor that run code.

    None: `ask` on the command line. For programs, None means `allow`, because a program grants the tools itself.
    """
    dangerous_tools: tuple[str, ...] = DANGEROUS
    permissions: dict[str, Approval] = {}
    """The approval mode of single tools, which overrides `approval_mode`."""
    denied_paths: tuple[str, ...] = ()
    require_denied_paths: bool = False
    """Refuse commands if denied paths cannot be made unreadable. If False, such paths are only matched by name."""
    usable_credentials: tuple[str, ...] = ()
    """Credential paths that commands can read without approval, such as `~/.ssh`."""
    allowed_paths: tuple[str, ...] | None = None
    """If set, a call that names a path outside these paths is denied."""
    personal_paths: tuple[str, ...] = ("~/Documents", "~/Downloads")
    code_paths: tuple[str, ...] = ("~/projects", "~/src")
    approval_seconds: Annotated[float, Meta(gt=0, le=1e6)] = 300.0
    """Time in seconds that a question waits for an answer. After this time, the call is denied."""
    dry_run: bool = False
    """Check and report each call, but run no call."""
    no_local_model: Literal["deny", "ask"] = "deny"
    """The decision about a call if no local model exists and the call's data may be sent to local models only."""
    function: str | None = None
    """`package.module:name` of a function that returns a Verdict for each call.

    The function runs in the agent's process.
    """
    taint: TaintConfig = field(default_factory=TaintConfig)
    """Which combinations of content and actions need approval."""


class PolicySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of an agent and of all its subagents. `asks_root`: a policy function in the root is also called."""

    channel: Channel = "api"
    rules: PolicyConfig = field(default_factory=PolicyConfig)
    asks_root: bool = False


class FilterRules(Struct, frozen=True):
    """The rules for the files that one call of `tool` finds.

    Absolute paths identify files. Files that match the rules `skip_rules` are skipped. If `enforce_taint` is True, a
    file is also skipped if its taint bit would complete the three bits. `bits` contains the bits before the call.
    `taint_rules` maps each bit to rules. A file that matches one of these rules adds the bit.
    """

    tool: str
    skip_rules: tuple[str, ...]
    taint_rules: dict[Bit, tuple[str, ...]]
    bits: frozenset[Bit]
    enforce_taint: bool
