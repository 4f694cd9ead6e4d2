"""Workers forked from zygotes that have imported everything already: a few milliseconds each. Linux."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from orch_protocol.errors import LaunchError, UnsupportedPlatformError
from orch_protocol.spec import Template

from ..events import BOOT_SECONDS
from .base import LaunchRequest
from .child import Child, Children
from .environment import check_platform
from .forker import Forker
from .intensity import Intensity
from .shim import Shim

__all__ = ["ZygoteLauncher"]

STOP_SECONDS: Final = 5.0
LOG_NAME: Final = "processes.log"


class ZygoteLauncher:
    """A `Launcher` with one shim below this process, one zygote a template below the shim, workers below those.

    All of them carry ORCH_RUN=`run_id`; shim and zygotes write to `folder`/processes.log. `entry` names the workers'
    main, "module:function". A zygote or shim that ends takes its workers along and is started again by the next
    launch, at most three times a minute of `clock`. Belongs to the event loop that `start` ran in.
    """

    def __init__(
        self,
        run_id: str,
        folder: Path,
        *,
        boot_timeout: float = BOOT_SECONDS,
        entry: str = "orch_worker.process:main",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_id = run_id
        self._log = folder / LOG_NAME
        self._boot_timeout = boot_timeout
        self._entry = entry
        self._intensity = Intensity(clock=clock)
        self._children = Children(self._sweep)
        self._shim: Shim | None = None
        self._forkers: dict[Template, Forker] = {}
        self._stopped = False

    async def start(self) -> None:
        """Start the shim and the lean zygote; returns before that is warm."""
        check_platform()
        if sys.platform != "linux":
            raise UnsupportedPlatformError(f"forked workers need Linux, this is {sys.platform}: use the exec launcher")
        self.warm("lean")

    def warm(self, template: Template) -> None:
        """Boot the zygote of `template` unless it is up or booting; returns at once. Raises LaunchError."""
        self._forker(template)

    async def launch(self, request: LaunchRequest) -> Child:
        """Return the forked worker. Raises LaunchError, at the latest after `boot_timeout` seconds."""
        try:
            async with asyncio.timeout(self._boot_timeout):
                return await self._forker(request.template).fork(request)
        except TimeoutError:
            raise LaunchError(
                f"agent {request.agent_id}: the {request.template} zygote made no worker within "
                f"{self._boot_timeout:g} s; is the machine overloaded, or the process stopped?"
            ) from None

    async def stop(self) -> None:
        """End every worker, zygote and the shim, and wait until they are gone (at most 5 s)."""
        self._stopped = True
        started = time.monotonic()
        await self._children.end(STOP_SECONDS / 2)
        for forker in self._forkers.values():
            forker.fail("the launcher was stopped")
        if self._shim is not None:
            shim, self._shim = self._shim, None
            await shim.stop(max(0.1, STOP_SECONDS - (time.monotonic() - started)))
        for forker in self._forkers.values():
            forker.bury()

    def _forker(self, template: Template) -> Forker:
        forker = self._forkers.get(template)
        if forker is not None and forker.failure is None:
            return forker
        if self._stopped:
            raise LaunchError("the launcher was stopped")
        if forker is not None and not self._intensity.allow():
            raise LaunchError(
                f"the {template} zygote was restarted {self._intensity.most} times within {self._intensity.seconds:g} s"
                f" and is left alone for now; the last time {forker.failure}"
            )
        try:
            if self._shim is None:
                self._shim = Shim(self._run_id, self._log, self._shim_ended)
            forker = Forker(
                template,
                self._shim,
                self._children,
                entry=self._entry,
                boot_timeout=self._boot_timeout,
                log=self._log,
            )
        except OSError as error:
            raise LaunchError(f"the processes that workers are forked from cannot be started: {error}") from error
        self._forkers[template] = forker
        return forker

    def _shim_ended(self, reason: str) -> None:
        self._shim = None
        for forker in self._forkers.values():
            forker.fail(reason)

    def _sweep(self) -> None:
        if self._shim is not None:
            self._shim.sweep()
