"""The tools run_python, run_python_script, py_help and installed_packages."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Final

from msgspec import Meta

from orch_protocol.policy.sandbox import UNCONFINED

from ...sandbox import own_namespace
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from ..shell.path_covers import PathCovers
from ..shell.shell import Seconds, run

__all__ = ["NOT_OFFERED", "PythonHiding", "installed_packages", "py_help", "run_python", "run_python_script"]

MAX_SCRIPT: Final = 100_000
NO_HELP: Final = re.compile(r"\A(No Python documentation found for|problem in) ")
HELP: Final = """
import pydoc, sys
with open("/dev/null") as nothing:
    pydoc.Helper(nothing, sys.stdout).help(sys.argv[1])
"""


NOT_OFFERED: Final = "run_python is not offered: orch's folders and denied paths cannot be hidden from it: {}"


class PythonHiding:
    """Whether denied paths can be hidden from the process that runs the code of the agent of `context`.

    `problem` is the reason if they cannot be hidden, or "". The constructor may read folders.
    """

    def __init__(self, context: ToolContext) -> None:
        self.problem = ""
        if not context.policy.denied_paths:
            return
        if context.host_of(UNCONFINED) is None:
            self.problem = "the code runs in the program's own process"
        elif not context.sandbox.covers_paths:
            self.problem = "there are no mount namespaces here"
        else:
            self.problem = PathCovers(context).find_for_tool_host().problem


def _is_available(context: ToolContext) -> bool:
    """Return whether code may run in the tool host itself, where no sandbox level applies."""
    return context.sandbox.of(UNCONFINED) == "L0" and not context.agent_object(PythonHiding).problem


@tool(available=_is_available, exclusive=True)
async def run_python(context: ToolContext, code: str) -> ToolOutput:
    """Run Python code.

    Returns its output and the value of its last expression. Output of programs that it starts is not included: capture
    it. Variables, imports and objects persist for later calls, as in a notebook. The code runs in your own process. A
    large value at the end is stored under a handle, in code handles["h_001"].

    Args:
        code: The code.
    """
    from .namespace import Namespace  # This import is slow and needed only to run code.

    failure = own_namespace.state()
    if failure or (failure is None and context.policy.denied_paths):
        raise ToolError(NOT_OFFERED.format(failure or "the code would run in a process that can read them"))
    return await context.agent_object(Namespace).run(code, context.seconds * 0.9)


@tool
async def run_python_script(
    context: ToolContext,
    code: Annotated[str, Meta(max_length=MAX_SCRIPT)],
    timeout: Seconds | None = None,
) -> ToolOutput:
    """Run Python code in a new process in the working folder. Returns its output and exit status.

    Args:
        code: The code.
        timeout: Seconds after which the process is ended. The general limit of a call also applies.
    """
    return await run(context, "run_python_script", [sys.executable, "-c", code], timeout)


@tool
async def py_help(context: ToolContext, topic: str) -> str:
    """Show the documentation of an installed module, class or function, or of a Python keyword.

    Args:
        topic: The full name, such as "json.dumps", "pathlib.Path.glob" or "with".
    """
    # -P prevents py_help from importing, and thereby running, modules in the working folder.
    output = await run(context, "py_help", [sys.executable, "-P", "-c", HELP, topic])
    text, _, status = output.text.rpartition("\n[")
    if output.is_error or NO_HELP.match(text) or not text:
        raise ToolError(text or f"[{status}")
    return text


@tool
def installed_packages(pattern: str = "", limit: Annotated[int, Meta(ge=1, le=1000)] = 200) -> str:
    """List the installed Python packages with their versions.

    Args:
        pattern: Only packages whose name contains this text.
        limit: Maximum number of packages.
    """
    from importlib.metadata import distributions

    normalized_pattern = re.sub(r"[-_.]+", "-", pattern).lower()
    found = {(each.name or "", each.version) for each in distributions()}
    lines = sorted(
        (f"{name} {version}" for name, version in found if normalized_pattern in re.sub(r"[-_.]+", "-", name).lower()),
        key=str.lower,
    )
    omitted_note = [f"[{len(lines) - limit:,} more; narrow with pattern]"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + omitted_note) or f"No installed package has {pattern!r} in its name."
