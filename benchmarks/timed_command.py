"""Run commands one after the other, and print one JSON line: their seconds, and the CPU seconds of all their processes.

Processes that detach themselves count too. Usage: timed_command.py, with a JSON list of commands on standard input. The
output of the commands goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from time import perf_counter

from orch_worker.system import linux


def cpu_of_children() -> float:
    """Wait for all child processes, and return the CPU seconds, user and system, of all processes below this one."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run the commands, and wait for all processes below this one."""
    commands = json.load(sys.stdin)
    linux.become_subreaper()  # A process that detaches itself becomes a child of this process.
    begin = perf_counter()
    for command in commands:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    wall = perf_counter() - begin
    print(json.dumps({"wall": wall, "cpu": cpu_of_children()}))


if __name__ == "__main__":
    main()
