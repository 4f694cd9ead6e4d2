"""The process between a root and its zygotes, which adopts orphans and ends all processes when the root ends.

The shim is called as `shim <control> <root pidfd>`. Both arguments are descriptors. The root sends packets of
NUL-separated words: `start` with an argument vector (the numbers of attached descriptors are appended), `sweep` (end
adopted processes), or `stop`. The answer to `start` is `started` with a pidfd, or `failed <text>`. Answers are sent in
order.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from ..system import linux

__all__ = ["main"]

RELIST_MS = 50


class ShimProcess:
    def __init__(self, control: socket.socket, root: int) -> None:
        self.control, self.root, self.wake = control, root, linux.wake_on_child()
        self.started: set[int] = set()
        self.sweeping = False
        self.poller = select.poll()
        for descriptor in (control.fileno(), root, self.wake):
            os.set_inheritable(descriptor, False)
            self.poller.register(descriptor, select.POLLIN)

    def serve(self) -> None:
        """Handle requests until the root ends, sends `stop` or closes the socket."""
        while True:
            ready = dict(self.poller.poll(RELIST_MS if self.sweeping else None))
            if self.root in ready or (self.control.fileno() in ready and not self.handle_packet()):
                return
            self.reap()
            if self.sweeping:
                self.sweeping = self.end(linux.children() - self.started)

    def handle_packet(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 8, socket.MSG_CMSG_CLOEXEC)
        verb, *words = packet.split(b"\0")
        if verb == b"start":
            self.start(words, descriptors)
        self.sweeping |= verb == b"sweep"
        return verb not in (b"stop", b"")

    def start(self, argv: list[bytes], descriptors: list[int]) -> None:
        try:
            pid = linux.start_tied(argv, descriptors)
            self.started.add(pid)
            pidfd = os.pidfd_open(pid)
            socket.send_fds(self.control, [b"started"], [pidfd])
            os.close(pidfd)
        except BlockingIOError as error:  # The process limit is reached.
            self.control.send(b"failed\0" + str(error).encode())
        for descriptor in descriptors:
            os.close(descriptor)

    def reap(self) -> bool:
        """Reap ended children. Return False if there are no children left."""
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            pass
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self.started.discard(pid)
        except ChildProcessError:
            return False
        return True

    def end(self, pids: set[int]) -> bool:
        for pid in pids:  # The kernel does not reuse a pid before the child is reaped here.
            try:
                os.kill(pid, signal.SIGKILL)
            except PermissionError:
                pass  # The child changed its user.
        return bool(pids)


def main(control: str, root: str) -> None:
    # A signal to the process group must not end the shim, and thus the workers, before the root reacts.
    linux.reset_signals(ignore=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    linux.become_subreaper()
    shim = ShimProcess(socket.socket(fileno=int(control)), int(root))
    try:
        shim.serve()
    except OSError:
        pass  # The root closed the socket during an answer.
    while shim.reap():
        shim.end(linux.children())
        select.select([shim.wake], [], [], RELIST_MS / 1000)
