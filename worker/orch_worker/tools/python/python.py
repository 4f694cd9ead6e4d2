"""Python: run_python in live names, run_python_script in a process of its own, py_help, installed_packages."""

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
    """Whether code may run in the worker itself, which no sandbox level confines.

    It may where orch's folders and denied paths are hidden from the worker, and not where hiding them failed. Where
    that was not tried (in the program's own process, without mount namespaces), it may if no path is denied.
    """
    if context.sandbox.of(IN_WORKER) > "L0":
        return False
    failure = None if context.in_process else worker_namespace.state()
    return not context.policy.denied_paths if failure is None else not failure


@tool(category="python", available=_is_available, exclusive=True)
async def run_python(context: ToolContext, code: str) -> ToolOutput:
    """Run Python code; answers with what it prints and the value of its last expression. What programs print that it
    starts is not among that: capture it.

    Names, imports and objects stay for later calls, as in a notebook. It runs in your own process. A large value at the
    end is kept under a handle, in code handles["h_001"].

    Args:
        code: The code.
    """
    from .namespace import Namespace  # by those who run code: much hangs on it

    return await context.own(Namespace).run(code, context.seconds * 0.9)


@tool(category="python")
async def run_python_script(
    context: ToolContext,
    code: Annotated[str, Meta(max_length=MAX_SCRIPT)],
    timeout: Seconds | None = None,
) -> ToolOutput:
    """Run Python code in a fresh process in the working folder; answers with its output and exit status.

    Args:
        code: The code.
        timeout: After how many seconds to end it; a call's own limit holds in any case.
    """
    return await run(context, "run_python_script", [sys.executable, "-c", code], timeout)


@tool(category="python")
async def py_help(context: ToolContext, topic: str) -> str:
    """Show the documentation of an installed module, class or function, or of a keyword of Python.

    Args:
        topic: Its full name, such as "json.dumps", "pathlib.Path.glob" or "with".
    """
    # -P: what lies in the working folder is not imported, which would run it.
    said = await run(context, "py_help", [sys.executable, "-P", "-c", HELP, topic])
    text, _, status = said.text.rpartition("\n[")
    if said.is_error or NO_HELP.match(text) or not text:
        raise ToolError(text or f"[{status}")
    return text


@tool(category="python")
def installed_packages(pattern: str = "", limit: Annotated[int, Meta(ge=1, le=1000)] = 200) -> str:
    """List the installed Python packages with their versions.

    Args:
        pattern: Only packages whose name contains this.
        limit: How many to list at most.
    """
    from importlib.metadata import distributions

    wanted = re.sub(r"[-_.]+", "-", pattern).lower()
    found = {(each.name or "", each.version) for each in distributions()}
    lines = sorted(
        (f"{name} {version}" for name, version in found if wanted in re.sub(r"[-_.]+", "-", name).lower()),
        key=str.lower,
    )
    more = [f"[{len(lines) - limit:,} more; narrow with pattern]"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + more) or f"No installed package has {pattern!r} in its name."
