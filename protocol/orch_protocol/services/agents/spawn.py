"""The service that starts agents."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from ...agent.models import Thinking
from ...agent.project import ContextConfig, ProjectCode, ProjectContext
from ...agent.spec import ExecutorSpec, Limits, QueueMode, Template, ToolSpec
from ...core.messages import Message
from ...core.prompts import PromptSpec
from ...core.worktrees import Isolation
from ...hooks.stages import HooksSpec
from ...policy.budget import Budget
from ...policy.policy import PolicySpec
from ...policy.sandbox import SandboxConfig
from ...resources.skills import SkillsConfig, SkillSpec
from ..service import AgentFields, Reach, Service, agents_with

__all__ = ["SPAWN", "Spawn", "Spawned"]


class Spawn(Struct, frozen=True, forbid_unknown_fields=True):
    """Start an agent. Unless stated otherwise, None means the configured value.

    - `preset`, `tools`: if both are set, the agent gets the tools of both. `root_tools` are functions of the user's
      program.
    - `agent`: the name of an agent type. The type supplies prompt, tools and model; `tools` and `preset` limit its
      tools.
    - `isolation`: "worktree" gives the agent its own git worktree and branch. None means that the agent works directly
      in `cwd`.
    - `model` is "provider:model". `script`, with `summaries`, selects the scripted backend instead.
    - `request_id`: an id of this request. If a client repeats a spawn with the same `request_id`, the root returns the
      first agent.
    - `template`: the process image to fork. None means the image that the backend needs.
    - `limits`, `budget`: a limit in `budget` overrides the same limit in `limits`.
    - `policy`, `hooks`, `prompt`, `sandbox`, `env`: set by users only. A subagent inherits these settings from its
      parent, except the identity in `prompt`.
    - `plan`: start in plan mode. Subagents of an agent in plan mode are in plan mode too.
    - `context`: how much the agent learns about its project. None means the level from `context_rules`. Only users set
      `context_rules`.
    - `persist`: if False, nothing about the agent and its subagents is stored on disk, and these agents end with their
      root.
    - `skills`: names of the agent's skills. None means the skills of its preset. `skill_rules`: where to search for
      skills. `own_skills`: skills of the user's program. A subagent's skills are a subset of its parent's skills.
    - `thinking`: reasoning effort. None means the parent's effort, otherwise `usual_thinking` if the model supports it.
    - `umask`: the umask for files that the agent creates. None means the umask of the parent or of the root. Set by
      users only.
    - `usable_credentials`: credential paths that commands can read without approval. Set by users only.
    - `depth`: 0 for an agent that a person talks to directly. Set by users only.
    - `peers`: agents outside the agent's subtree that the agent may query, wait for and list. Set by users only.
    - `archives`: archives that the agent may search, read and query. A parent can pass on only archives that the parent
      itself may query.
    - `ends_with_connection`: end the agent when the client that sent this request disconnects from the control socket,
      or when its daemon has ended. Only clients of the control socket set it.
    - `executor`: lists tools of the agent and runs their calls. Set by users only. If `executor.wanted` is not None, it
      contains the same names as `tools`. A name that belongs to no other tool is the name of an executor tool.
    - `code`: the code that the trusted configuration of the caller's project names. Set by users only.
    - `parent`: an agent of the same user. The new agent is listed below this agent, and the budget of this agent covers
      the new agent too. Set by users only.
    - `item`: identifies one item of a map, or "". If `parent` already has an agent for the item, the root returns that
      agent. If the item has no reply yet and `limits` or `budget` differ, a new agent replaces that agent. Set by users
      only.
    - `start`: if False, the agent gets a process with its first query. Set by users only.
    """

    task: str
    preset: str | None = None
    tools: tuple[str, ...] | None = None
    root_tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    script: tuple[Any, ...] | None = None
    summaries: tuple[Any, ...] = ()
    name: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    umask: int | None = None
    history: tuple[Message, ...] = ()
    limits: Limits | None = None
    budget: Budget = Budget()
    template: Template | None = None
    queue_mode: QueueMode = "one-at-a-time"
    follow_up_mode: QueueMode | None = None
    policy: PolicySpec | None = None
    plan: bool = False
    context: ProjectContext | None = None
    context_rules: ContextConfig | None = None
    hooks: HooksSpec | None = None
    prompt: PromptSpec | None = None
    sandbox: SandboxConfig | None = None
    persist: bool = True
    depth: Literal[0, 1] = 1
    skills: tuple[str, ...] | None = None
    skill_rules: SkillsConfig | None = None
    own_skills: tuple[SkillSpec, ...] = ()
    request_id: str | None = None
    peers: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    thinking: str | None = None
    usual_thinking: Thinking | None = None
    usable_credentials: tuple[str, ...] = ()
    agent: str | None = None
    isolation: Isolation | None = None
    executor: ExecutorSpec | None = None
    code: ProjectCode | None = None
    ends_with_connection: bool = False
    parent: str | None = None
    item: str = ""
    start: bool = True


class Spawned(Struct, frozen=True):
    """The agent was started. `note` is a remark about the agent's sandbox or about missing persistence, or ""."""

    id: str
    seq: int
    name: str
    preset: str
    depth: int
    pid: int | None
    note: str = ""


SPAWN_FIELDS: Final = AgentFields(
    free=(
        *("task", "name", "agent", "preset", "tools", "skills", "model", "script", "summaries", "thinking"),
        *("cwd", "isolation", "context", "plan", "queue_mode", "follow_up_mode", "ends_with_connection"),
    ),
    users=(
        *(
            "policy",
            "hooks",
            "prompt",
            "sandbox",
            "executor",
            "template",
            "usable_credentials",
            "peers",
            "depth",
            "code",
            "parent",
            "item",
            "start",
        ),
        *("env", "umask", "history", "context_rules", "skill_rules", "own_skills", "usual_thinking"),
    ),
    own=("root_tools", "limits", "budget", "persist", "request_id"),
    refs={"archives": Reach("", "ask")},
)
SPAWN: Final = Service(
    "spawn",
    Spawn,
    Spawned,
    agents_with("spawn_subagent"),
    "Start an agent.",
    SPAWN_FIELDS,
)
