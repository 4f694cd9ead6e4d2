"""Running commands: bash, and bg_status and bg_kill for those in the background."""

from __future__ import annotations

import shutil
import time
from typing import Annotated, Final

from msgspec import Meta

from ...system.files import regular_open_regular
from ..api.base import ToolContext, ToolOutput, tool
from .command import RunningCommand, ended_by
from .environment import tool_environment
from .jobs import Jobs
from .output_capture import OutputCapture, plain_output
from .sandboxed_exec import covered_starter

__all__ = ["bash", "bg_kill", "bg_status", "run"]

MAX_WRITTEN: Final = 64 << 20
MAX_READ: Final = 28_000
TAIL: Final = 4_000
MOST_EARLIER: Final = 16
OUT_OF_REACH: Final = "[sandbox {}: {}other processes and files outside the working folder are out of reach]"

Seconds = Annotated[float, Meta(gt=0)]


@tool(category="code")
async def bash(
    context: ToolContext,
    command: str,
    timeout: Seconds | None = None,
    background: bool = False,
    credentials: bool = False,
) -> ToolOutput:
    """Run a shell command in the working folder, without input or terminal; answers with its output and exit status.

    When it ends, so does everything it started: what is to go on needs background, and no "&".

    Args:
        command: The command, as bash reads it.
        timeout: After how many seconds to end it; a call's own limit holds in any case.
        background: Whether to return at once, with the id of a job for bg_status and bg_kill.
        credentials: Whether it needs credentials such as ~/.ssh, as git push does; the user is asked.
    """
    argv = [shutil.which("bash") or "/bin/sh", "-c", command]
    if not background:
        return await run(context, "bash", argv, timeout, credentials=credentials)
    env = tool_environment(context, "bash")
    start, _ = await covered_starter(context, "bash", credentials=credentials or context.approved)
    jobs = context.own(Jobs)
    job = jobs.start(command, lambda log: RunningCommand(argv, cwd=context.cwd, env=env, sink=log, start=start))
    return ToolOutput(
        f"Started {job.id}. See how it does with bg_status, end it with bg_kill. It ends with your process, also when "
        "nobody has asked you anything for long."
    )


@tool(category="code")
async def bg_status(
    context: ToolContext,
    id: str | None = None,
    offset: Annotated[int, Meta(ge=0)] | None = None,
    limit: Annotated[int, Meta(ge=1, le=MAX_READ)] = TAIL,
    wait: Annotated[float, Meta(ge=0)] = 0.0,
) -> str:
    """Say how background jobs do: all of them in a line each, or one with its output.

    Args:
        id: The job; without it, all are listed.
        offset: The first byte of its output to show; without it, its end is shown.
        limit: How many bytes of output to show at most.
        wait: How many seconds to wait for its end, if it has not ended.
    """
    jobs = context.own(Jobs)
    if id is None:
        now = [f"{job.state}: {job.shown[:200]}" for job in jobs.all()]
        return "\n".join([*jobs.earlier()[-MOST_EARLIER:], *now]) or "There are no jobs."
    file = jobs.output(id)
    known = [job for job in jobs.all() if job.id == id]
    for job in known:
        await job.command.wait(min(wait, context.seconds * 0.8))
    state = known[0].state if known else jobs.ended(id)
    with regular_open_regular(file) as log:
        size = log.seek(0, 2)
        start = max(0, size - limit) if offset is None else min(offset, size)
        log.seek(start)
        data = log.read(limit)
    end = start + len(data)
    more = f"; go on with offset={end}" if end < size or (known and known[0].command.code is None) else ""
    return f"{plain_output(data)}\n[{state}; bytes {start:,} to {end:,} of {size:,}{more}]"


@tool(category="code")
async def bg_kill(context: ToolContext, id: str) -> str:
    """End a background job and everything it started. Its output can still be read with bg_status.

    Args:
        id: The job.
    """
    jobs = context.own(Jobs)
    job = jobs.get(id)
    if job is None:
        return f"{jobs.ended(id)} already."
    if job.command.code is not None:
        return f"{job.state} already."
    await job.command.end()
    return f"{job.state}."


async def run(
    context: ToolContext, tool: str, argv: list[str], seconds: float | None = None, *, credentials: bool = False
) -> ToolOutput:
    """Run `argv` for `tool` to its end; return what it wrote and its exit status; anything but 0 is an error.

    Denied paths and orch's own folders cannot be read, and credentials only if the call was approved or asked for them.
    """
    capture = OutputCapture()
    # Ahead of the call's own deadline, so that what it wrote so far is told rather than thrown away.
    seconds = min(context.seconds * 0.95, seconds or context.seconds)
    env = tool_environment(context, tool)
    start, covered = await covered_starter(context, tool, credentials=credentials or context.approved)
    command = RunningCommand(argv, cwd=context.cwd, env=env, sink=capture, flood=MAX_WRITTEN, start=start)
    began = time.monotonic()
    try:
        in_time = await command.wait(seconds)
        if not in_time:
            await command.end()
    finally:
        command.kill()
    notes = []
    if command.flooded:
        notes.append(f"[killed: it wrote more than {MAX_WRITTEN >> 20} MiB; send long output to a file]")
    elif not in_time:
        notes.append(f"[timed out after {time.monotonic() - began:.0f} s and was ended; longer work needs background]")
    else:
        # In namespaces of its own all ends with it; what is found there is what has made them.
        if command.strays and context.sandbox.of(tool) < "L3":
            notes.append(f"[processes it left behind, now ended: {command.strays}; what is to go on needs background]")
        notes.append(f"[{ended_by(command.code)}]")
        if command.code and (level := context.sandbox.of(tool)) >= "L2":
            notes.append(OUT_OF_REACH.format(level, "" if context.sandbox.network else "the network, "))
        if command.code and covered.note:
            notes.append(covered.note)
    if covered.incomplete:
        notes.append(f"[denied paths: by name only where there are {covered.incomplete}]")
    text = capture.text()
    return ToolOutput("\n".join([*([text.rstrip("\n")] if text else []), *notes]), is_error=command.code != 0)
