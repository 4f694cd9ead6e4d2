"""Commands that go on in the background, each with its output in a file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from ...system.secrets import Masker, secrets_of
from ..api.base import ToolContext, ToolError
from .command import RunningCommand, ended_by

__all__ = ["Job", "JobLog", "Jobs"]

MAX_RUNNING: Final = 16
MAX_LOG: Final = 64 << 20
MOST_SAID: Final = 40
NAME: Final = re.compile(r"(job_\d+)\.log")


class JobLog:
    """The file that a job's output goes to, without `secrets`, up to 64 MiB; what follows is dropped and counted."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self._masker = Masker(secrets)
        self.size = 0
        self.dropped = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)

    def __call__(self, data: bytes) -> None:
        """Take the next bytes."""
        self._write(self._masker.feed(data))

    def close(self) -> None:
        """Write no more."""
        self._write(self._masker.rest())
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        kept = data[: max(0, MAX_LOG - self.size)]
        try:
            written = os.write(self._file, kept) if kept else 0
        except OSError:
            written = 0  # a full disk must not end the job
        self.size += written
        self.dropped += len(data) - written


class Job:
    """One command in the background."""

    def __init__(self, id: str, shown: str, command: RunningCommand, log: JobLog) -> None:
        self.id = id
        self.shown = shown
        self.command = command
        self.log = log
        self.began = time.monotonic()

    @property
    def state(self) -> str:
        """How it does, or what it ended with."""
        dropped = f", {self.log.dropped:,} bytes of output dropped" if self.log.dropped else ""
        if self.command.code is None:
            return f"{self.id} running for {time.monotonic() - self.began:.0f} s{dropped}"
        return f"{self.id} ended with {ended_by(self.command.code)}{dropped}"


class Jobs:
    """The jobs of one agent. They end with its process; their output stays in its session folder, and what those that
    ended by themselves ended with."""

    def __init__(self, context: ToolContext) -> None:
        if context.folder is None:
            raise ToolError("no background jobs here: this agent has no session folder for their output")
        self._folder = context.folder / "jobs"
        self._secrets = secrets_of(context.keys)
        self._jobs: dict[str, Job] = {}
        self._closing = False

    def start(self, shown: str, make: Callable[[JobLog], RunningCommand]) -> Job:
        """Start what `make` returns, called with the log to write to. Raises ToolError when there are too many."""
        running = [job.id for job in self._jobs.values() if job.command.code is None]
        if len(running) >= MAX_RUNNING:
            raise ToolError(f"{MAX_RUNNING} jobs are running already ({', '.join(running)}): end one with bg_kill.")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # The numbers of jobs that an earlier process of this agent ran are taken.
        number = 1 + max((int(id.removeprefix("job_")) for id in self._logs()), default=0)
        log = JobLog(self._folder / f"job_{number}.log", self._secrets)
        try:
            job = Job(f"job_{number}", shown, make(log), log)
        except BaseException:
            log.close()
            raise
        self._jobs[job.id] = job
        job.command.on_end = partial(self._over, job)
        return job

    def all(self) -> list[Job]:
        """Return every job of this process, oldest first."""
        return list(self._jobs.values())

    def get(self, id: str) -> Job | None:
        """Return the job `id`, None for one of an earlier process. Raises ToolError."""
        if id not in self._jobs:
            self.output(id)
        return self._jobs.get(id)

    def earlier(self) -> list[str]:
        """Return what became of each job of earlier processes, oldest first."""
        return [self.ended(id) for id in self._logs() if id not in self._jobs]

    def ended(self, id: str) -> str:
        """Return what became of the job `id` of an earlier process."""
        try:
            said = self._end(id).read_text(errors="replace")[:MOST_SAID]
        except OSError:
            said = ""
        return f"{id} ended with {said or 'the process that ran it'}"

    def output(self, id: str) -> Path:
        """Return the file with the output of the job `id`, also of an earlier process. Raises ToolError."""
        logs = self._logs()
        if id not in logs:
            raise ToolError(f"No job {id!r}. Jobs: {', '.join(logs) or 'none'}.")
        return logs[id]

    def close(self) -> None:
        """End every job."""
        self._closing = True
        for job in self._jobs.values():
            job.command.close()
            job.log.close()

    def _over(self, job: Job) -> None:
        """The job has ended: for whoever asks in another process, let there be what it ended with."""
        if self._closing:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with open(os.open(self._end(job.id), flags, 0o600), "w") as file:
                file.write(ended_by(job.command.code))
        except OSError as error:
            print(f"what {job.id} ended with is not on record: {error}", flush=True)

    def _end(self, id: str) -> Path:
        return self._folder / f"{id}.end"

    def _logs(self) -> dict[str, Path]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        matches = sorted(filter(None, map(NAME.fullmatch, names)), key=lambda match: int(match[1][4:]))
        return {match[1]: self._folder / match[0] for match in matches}
