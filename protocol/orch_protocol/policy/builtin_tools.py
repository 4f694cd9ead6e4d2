"""The built-in tools: one row per tool, with the facts that grants, policy, sandbox, hooks and workspace use.

The parameters, the description and the availability of a tool are declared with `@tool` in the tool's module.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["BUILTIN_TOOLS", "CODE_TOOLS", "FILE_WRITERS", "HOSTED", "Operation", "ToolFacts", "facts_of"]

Operation: TypeAlias = Literal["read", "write", "exec"]


class ToolFacts(Struct, frozen=True):
    """The facts about a tool."""

    module: str
    """The module that defines the tool. A worker imports the module when it needs the tool."""
    category: str
    """The name that stands for this tool and similar tools in a list of tools.

    The policy assumes that tools of the category `web` add untrusted content and send their arguments to others.
    """
    operation: Operation
    """The most dangerous operation of a call."""
    paths: tuple[str, ...] = ()
    """The string arguments that the policy searches for paths: paths, patterns, commands and code, but also ids.

    The policy searches each argument that is not in `text`. A test reports string arguments that are in neither list.
    """
    text: tuple[str, ...] = ()
    """The string arguments that contain plain text and never paths, such as the prompt of a query."""
    folderless: bool = False
    """The tool does not work in the agent's folder. A call of any other tool counts as an access to this folder."""
    recursive: bool = False
    """The tool reads the folder in its argument `path` and all folders below it."""
    filters_files: bool = False
    """The tool finds files below its argument `path` and asks the policy about each of them."""
    runs_code: bool = False
    """The tool runs commands or code that the agent chooses."""
    artifact: bool = True
    """Whether results become artifacts of the workspace.

    False for results that are not worth keeping, and for those that are recorded in another way: Python values by their
    names, agents by their archives.
    """
    polls: bool = False
    """The tool is meant to be called repeatedly until its result changes."""


_READ: Final = "orch_worker.tools.files.read"
_EDIT: Final = "orch_worker.tools.files.edit"
_SHELL: Final = "orch_worker.tools.shell.shell"
_GIT: Final = "orch_worker.tools.shell.git"
_WEB: Final = "orch_worker.tools.web.web"
_PYTHON: Final = "orch_worker.tools.python.python"
_DATA: Final = "orch_worker.tools.python.data"
_HANDLES: Final = "orch_worker.tools.values.handles"
_MEMORY: Final = "orch_worker.memory.memory_tools"
_SKILLS: Final = "orch_worker.skills.read_skill"
_WORKSPACE: Final = "orch_worker.workspace.workspace_tools"
_PLAN: Final = "orch_worker.tools.agents.plan"
_CHAT: Final = "orch_worker.tools.agents.chat"
_RECALL: Final = "orch_worker.context.recall_tools"
_AGENTS: Final = "orch_worker.tools.agents.subagents"

BUILTIN_TOOLS: Final[dict[str, ToolFacts]] = {
    "list_files": ToolFacts(
        _READ, "file", "read", paths=("path", "glob"), recursive=True, filters_files=True, artifact=False
    ),
    "grep_files": ToolFacts(
        _READ, "file", "read", paths=("path", "glob"), text=("pattern",), recursive=True, filters_files=True
    ),
    "read_file": ToolFacts(_READ, "file", "read", paths=("path",)),
    "write_file": ToolFacts(_EDIT, "file", "write", paths=("path",), text=("content",)),
    "replace_in_file": ToolFacts(
        _EDIT, "file", "write", paths=("path",), text=("old_text", "new_text"), artifact=False
    ),
    "bash": ToolFacts(_SHELL, "code", "exec", paths=("command",), runs_code=True),
    "bg_status": ToolFacts(_SHELL, "code", "read", paths=("id",), folderless=True, artifact=False, polls=True),
    "bg_kill": ToolFacts(_SHELL, "code", "exec", paths=("id",), folderless=True, artifact=False),
    "git_status": ToolFacts(_GIT, "git", "read", paths=("path",), artifact=False),
    "git_diff": ToolFacts(_GIT, "git", "read", paths=("ref", "path"), filters_files=True),
    "git_log": ToolFacts(_GIT, "git", "read", paths=("ref", "path")),
    "web_search": ToolFacts(_WEB, "web", "read", text=("query",), folderless=True),
    "fetch_url": ToolFacts(_WEB, "web", "read", paths=("url",), folderless=True),
    "run_python": ToolFacts(_PYTHON, "python", "exec", paths=("code",), runs_code=True, artifact=False),
    "run_python_script": ToolFacts(_PYTHON, "python", "exec", paths=("code",), runs_code=True),
    "py_help": ToolFacts(_PYTHON, "python", "read", paths=("topic",), folderless=True, runs_code=True, artifact=False),
    "installed_packages": ToolFacts(_PYTHON, "python", "read", paths=("pattern",), folderless=True, artifact=False),
    "describe_data": ToolFacts(_DATA, "data", "read", paths=("path",)),
    "describe_variables": ToolFacts(_DATA, "data", "read", paths=("name",), folderless=True, artifact=False),
    "read_handle": ToolFacts(
        _HANDLES, "memory", "read", paths=("handle", "lines", "search"), folderless=True, artifact=False
    ),
    "remember": ToolFacts(_MEMORY, "notes", "write", text=("text",), folderless=True, artifact=False),
    "recall": ToolFacts(_MEMORY, "notes", "read", text=("query",), folderless=True, artifact=False),
    "read_skill": ToolFacts(_SKILLS, "skills", "read", text=("name", "file"), folderless=True),
    "pin_object": ToolFacts(_WORKSPACE, "workspace", "read", text=("name",), folderless=True, artifact=False),
    "exit_plan_mode": ToolFacts(_PLAN, "plan", "read", text=("plan",), folderless=True, artifact=False),
    "task_create": ToolFacts(_PLAN, "tasks", "read", text=("tasks",), folderless=True, artifact=False),
    "task_update": ToolFacts(_PLAN, "tasks", "read", folderless=True, artifact=False),
    "chat": ToolFacts(_CHAT, "chat", "read", text=("prompt", "model", "system"), folderless=True),
    "list_models": ToolFacts(_CHAT, "chat", "read", folderless=True, artifact=False),
    "search_archive": ToolFacts(_RECALL, "archive", "read", text=("query",), folderless=True, artifact=False),
    "read_archive": ToolFacts(
        _RECALL, "archive", "read", paths=("id",), text=("lines",), folderless=True, artifact=False
    ),
    "map_subagents": ToolFacts(
        _RECALL, "archive", "read", paths=("ids",), text=("prompt",), folderless=True, artifact=False
    ),
    # The calls of a subagent are judged when the subagent makes them.
    "spawn_subagent": ToolFacts(
        _AGENTS,
        "agents",
        "read",
        paths=("tools", "skills", "archives", "name", "model", "agent"),
        text=("task", "query"),
        folderless=True,
        artifact=False,
    ),
    "query_subagent": ToolFacts(
        _AGENTS, "agents", "read", paths=("id", "return_name"), text=("prompt",), folderless=True, artifact=False
    ),
    "collect_subagent": ToolFacts(
        _AGENTS, "agents", "read", paths=("id", "return_name"), folderless=True, artifact=False, polls=True
    ),
    "wait_subagents": ToolFacts(_AGENTS, "agents", "read", paths=("ids",), folderless=True, artifact=False, polls=True),
    "list_subagents": ToolFacts(_AGENTS, "agents", "read", folderless=True, artifact=False, polls=True),
    "kill_subagent": ToolFacts(_AGENTS, "agents", "write", paths=("id",), folderless=True, artifact=False),
}
"""The facts about each built-in tool, by name. Lists of tools are in this order."""

CODE_TOOLS: Final = tuple(
    name for name, facts in BUILTIN_TOOLS.items() if facts.runs_code and facts.operation == "exec"
)
"""Tools that run code which can have any effect."""
FILE_WRITERS: Final = tuple(
    name for name, facts in BUILTIN_TOOLS.items() if facts.category == "file" and facts.operation == "write"
)
"""Tools that write the file at their argument `path`."""

HOSTED: Final = frozenset(
    name
    for name, facts in BUILTIN_TOOLS.items()
    if facts.category in ("file", "code", "git", "python", "data", "memory")
)
"""Tools that run in the agent's tool host: they run code of the agent, or read what the code may have written."""

_OTHER: Final = ToolFacts("", "user", "exec")


def facts_of(tool: str) -> ToolFacts:
    """Return the facts about `tool`. A tool that is not built in has the most dangerous operation: exec."""
    return BUILTIN_TOOLS.get(tool, _OTHER)
