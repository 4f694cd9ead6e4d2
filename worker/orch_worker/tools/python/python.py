"""The tools run_python, run_python_script, py_help and installed_packages."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Final

from msgspec import Meta

from orch_protocol.policy.sandbox import IN_WORKER

from ...sandbox import worker_namespace
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from ..shell.shell import Seconds, run

__all__ = ["installed_packages", "py_help", "run_python", "run_python_script"]

MAX_SCRIPT: Final = 100_000
NO_HELP: Final = re.compile(r"\A(No Python documentation found for|problem in) ")
HELP: Final = """
import pydoc, sys
with open("/dev/null") as nothing:
    pydoc.Helper(nothing, sys.stdout).help(sys.argv[1])
"""


def _is_available(context: ToolContext) -> bool:
    """Return whether code may run in the worker itself, where no sandbox level applies.

    Code may run if orch's folders and denied paths are hidden from the worker. Paths are not hidden in the program's
    own process, or without mount namespaces. In both cases, code may run if no path is denied.
    """
    if context.sandbox.of(IN_WORKER) > "L0":
        return False
    failure = None if context.in_process else worker_namespace.state()
    return not context.policy.denied_paths if failure is None else not failure


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
