"""The tools bash, bg_status and bg_kill."""

from __future__ import annotations

import shutil
import time
from typing import Annotated, Final

from msgspec import Meta

from ...system.files import open_regular_file
from ..api.base import ToolContext, ToolOutput, tool
from .command import RunningCommand, exit_text
from .environment import tool_environment
from .jobs import Jobs
from .output_capture import OutputCapture, plain_output
from .sandboxed_exec import covered_starter

__all__ = ["bash", "bg_kill", "bg_status", "run"]

MAX_WRITTEN: Final = 64 << 20
MAX_READ: Final = 28_000
DEFAULT_BYTES: Final = 4_000
MAX_EARLIER: Final = 16
SANDBOX_NOTE: Final = "[sandbox {}: {}other processes and files outside the working folder are out of reach]"

Seconds = Annotated[float, Meta(gt=0)]


@tool
async def bash(
    context: ToolContext,
    command: str,
    timeout: Seconds | None = None,
    background: bool = False,
    credentials: bool = False,  # noqa: ARG001 - the guard asks for an approval, which sets context.credentials
) -> ToolOutput:
    """Run a shell command in the working folder, without input or terminal. Returns its output and exit status.

    When the command ends, all processes it started are ended too. For work that must continue use background, not "&".

    Args:
        command: The command, in bash syntax.
        timeout: Seconds after which the command is ended. The general limit of a call also applies.
        background: Whether to return immediately, with the id of a job for bg_status and bg_kill.
        credentials: Whether the command needs credentials such as ~/.ssh, for example git push. The user is asked.
    """
    argv = [shutil.which("bash") or "/bin/sh", "-c", command]
    if not background:
        return await run(context, "bash", argv, timeout)
    env = tool_environment(context, "bash")
    start, _ = await covered_starter(context, "bash")
    jobs = context.agent_object(Jobs)
    job = jobs.start(command, lambda log: RunningCommand(argv, cwd=context.cwd, env=env, sink=log, start=start))
    return ToolOutput(
        f"Started {job.id}. bg_status shows its status, and bg_kill ends it. The job also ends with your process, "
        "which ends after a long time without queries."
    )


@tool
async def bg_status(
    context: ToolContext,
    id: str | None = None,
    offset: Annotated[int, Meta(ge=0)] | None = None,
    limit: Annotated[int, Meta(ge=1, le=MAX_READ)] = DEFAULT_BYTES,
    wait: Annotated[float, Meta(ge=0)] = 0.0,
) -> str:
    """Show the status of background jobs: one line per job, or one job with its output.

    Args:
        id: The job. Without an id, all jobs are listed.
        offset: The first byte of output to show. Default: the end of the output.
        limit: Maximum number of bytes of output.
        wait: Seconds to wait for the end of the job.
    """
    jobs = context.agent_object(Jobs)
    if id is None:
        current = [f"{job.state}: {job.command_text[:200]}" for job in jobs.all()]
        return "\n".join([*jobs.describe_earlier()[-MAX_EARLIER:], *current]) or "There are no jobs."
    file = jobs.output(id)
    matching_jobs = [job for job in jobs.all() if job.id == id]
    for job in matching_jobs:
        await job.command.wait(min(wait, context.seconds * 0.8))
    state = matching_jobs[0].state if matching_jobs else jobs.describe_end(id)
    with open_regular_file(file) as log:
        size = log.seek(0, 2)
        start = max(0, size - limit) if offset is None else min(offset, size)
        log.seek(start)
        data = log.read(limit)
    end = start + len(data)
    continuation = (
        f"; go on with offset={end}" if end < size or (matching_jobs and matching_jobs[0].command.code is None) else ""
    )
    return f"{plain_output(data)}\n[{state}; bytes {start:,} to {end:,} of {size:,}{continuation}]"


@tool
async def bg_kill(context: ToolContext, id: str) -> str:
    """End a background job and all processes it started. bg_status still shows its output.

    Args:
        id: The job.
    """
    jobs = context.agent_object(Jobs)
    job = jobs.get(id)
    if job is None:
        return f"{jobs.describe_end(id)} already."
    if job.command.code is not None:
        return f"{job.state} already."
    await job.command.end()
    return f"{job.state}."


async def run(context: ToolContext, tool: str, argv: list[str], seconds: float | None = None) -> ToolOutput:
    """Run `argv` for `tool`. Return the output and exit status of the command. Any status except 0 is an error.

    The command cannot read denied paths and orch's folders. The command can read only those credentials that an
    approval of the call named.
    """
    capture = OutputCapture()
    # This is before the timeout of the call, so that partial output is returned.
    seconds = min(context.seconds * 0.95, seconds or context.seconds)
    env = tool_environment(context, tool)
    start, hidden_paths = await covered_starter(context, tool)
    command = RunningCommand(argv, cwd=context.cwd, env=env, sink=capture, max_bytes=MAX_WRITTEN, start=start)
    start_time = time.monotonic()
    try:
        in_time = await command.wait(seconds)
        if not in_time:
            await command.end()
    finally:
        command.kill()
    notes = []
    if command.exceeded_output:
        notes.append(f"[killed: it wrote more than {MAX_WRITTEN >> 20} MiB; send long output to a file]")
    elif not in_time:
        notes.append(
            f"[timed out after {time.monotonic() - start_time:.0f} s and was ended; longer work needs background]"
        )
    else:
        # At L3, the namespace ends with the command, and any processes found belong to bubblewrap.
        if command.killed_leftovers and context.sandbox.of(tool) < "L3":
            notes.append(
                f"[processes it left behind, now ended: {command.killed_leftovers}; what is to go on needs background]"
            )
        notes.append(f"[{exit_text(command.code)}]")
        if command.code and (level := context.sandbox.of(tool)) >= "L2":
            notes.append(SANDBOX_NOTE.format(level, "" if context.sandbox.network else "the network, "))
        if command.code and hidden_paths.note:
            notes.append(hidden_paths.note)
    text = capture.text()
    return ToolOutput("\n".join([*([text.rstrip("\n")] if text else []), *notes]), is_error=command.code != 0)
