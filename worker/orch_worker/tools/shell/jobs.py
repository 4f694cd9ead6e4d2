"""Background commands, each with its output in a file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from ..api.base import ToolContext, ToolError
from .command import RunningCommand, exit_text
from .path_covers import JOBS

__all__ = ["Job", "JobLog", "Jobs"]

MAX_RUNNING: Final = 16
MAX_LOG: Final = 64 << 20
MAX_SAID: Final = 40
NAME: Final = re.compile(r"(job_\d+)\.log")


class JobLog:
    """The log file of a job, up to 64 MiB. Further output is dropped and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.dropped = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    def __call__(self, data: bytes) -> None:
        """Write the next bytes."""
        accepted = data[: max(0, MAX_LOG - self.size)]
        try:
            written = os.write(self._file, accepted) if accepted else 0
        except OSError:
            written = 0  # A full disk must not stop the job.
        self.size += written
        self.dropped += len(data) - written

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Job:
    """A background command."""

    def __init__(self, id: str, command_text: str, command: RunningCommand, log: JobLog) -> None:
        self.id = id
        self.command_text = command_text
        self.command = command
        self.log = log
        self.start_time = time.monotonic()

    @property
    def state(self) -> str:
        """A text about the state of the job, or about its end."""
        dropped = f", {self.log.dropped:,} bytes of output dropped" if self.log.dropped else ""
        if self.command.code is None:
            return f"{self.id} running for {time.monotonic() - self.start_time:.0f} s{dropped}"
        return f"{self.id} ended with {exit_text(self.command.code)}{dropped}"


class Jobs:
    """The background jobs of one agent.

    The jobs end with the agent's process. The output and exit status of jobs stay in the agent's session folder.
    """

    def __init__(self, context: ToolContext) -> None:
        if context.folder is None:
            raise ToolError("no background jobs here: this agent has no session folder for their output")
        self._folder = context.folder / JOBS
        self._jobs: dict[str, Job] = {}
        self._closing = False

    def start(self, command_text: str, start_command: Callable[[JobLog], RunningCommand]) -> Job:
        """Call `start_command` with the log file of a new job, and start the command that it returns.

        Raise ToolError if too many jobs are running.
        """
        running = [job.id for job in self._jobs.values() if job.command.code is None]
        if len(running) >= MAX_RUNNING:
            raise ToolError(f"{MAX_RUNNING} jobs are already running ({', '.join(running)}): end one with bg_kill.")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # Numbers of jobs from earlier processes of this agent are not used again.
        number = 1 + max((int(id.removeprefix("job_")) for id in self._logs()), default=0)
        log = JobLog(self._folder / f"job_{number}.log")
        try:
            job = Job(f"job_{number}", command_text, start_command(log), log)
        except BaseException:
            log.close()
            raise
        self._jobs[job.id] = job
        job.command.on_end = partial(self._save_exit_status, job)
        return job

    def all(self) -> list[Job]:
        """Return all jobs of this process, oldest first."""
        return list(self._jobs.values())

    def get(self, id: str) -> Job | None:
        """Return the job `id`. Return None for a job of an earlier process. Raise ToolError for an unknown job."""
        if id not in self._jobs:
            self.output(id)
        return self._jobs.get(id)

    def describe_earlier(self) -> list[str]:
        """Return a text about each job of earlier processes, oldest first."""
        return [self.describe_end(id) for id in self._logs() if id not in self._jobs]

    def describe_end(self, id: str) -> str:
        """Return a text about the end of the job `id`, which an earlier process started."""
        try:
            output = self._exit_status_path(id).read_text(errors="replace")[:MAX_SAID]
        except OSError:
            output = ""
        return f"{id} ended with {output or 'the process that ran it'}"

    def output(self, id: str) -> Path:
        """Return the log file of the job `id`. An earlier process of the agent may have started the job.

        Raise ToolError for an unknown job.
        """
        logs = self._logs()
        if id not in logs:
            raise ToolError(f"No job {id!r}. Jobs: {', '.join(logs) or 'none'}.")
        return logs[id]

    def close(self) -> None:
        """End all jobs."""
        self._closing = True
        for job in self._jobs.values():
            job.command.close()
            job.log.close()

    def _save_exit_status(self, job: Job) -> None:
        """Save the exit status of the job for later processes."""
        if self._closing:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with open(os.open(self._exit_status_path(job.id), flags, 0o600), "w") as file:
                file.write(exit_text(job.command.code))
        except OSError as error:
            print(f"the end of {job.id} was not recorded: {error}", flush=True)

    def _exit_status_path(self, id: str) -> Path:
        return self._folder / f"{id}.end"

    def _logs(self) -> dict[str, Path]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        matches = sorted(filter(None, map(NAME.fullmatch, names)), key=lambda match: int(match[1][4:]))
        return {match[1]: self._folder / match[0] for match in matches}
