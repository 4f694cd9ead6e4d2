"""The first question to a model from the shell, while no daemon runs: `orch run`.

The program prints one JSON line: the milliseconds until the answer, and the CPU milliseconds of all processes, which
includes the daemon, the template and the agent until the daemon has stopped. Usage: cold_query.py ORCH
"""

from __future__ import annotations

import json
import subprocess
import sys
from time import perf_counter

from timed_command import cpu_of_children

from orch_worker.system import linux

COMMAND = ("run", "nothing", "hi", "--tools", "", "--context", "none")
SECONDS = 60


def main(orch: str) -> None:
    """Ask, stop the daemon, and wait for all processes below this one."""
    linux.become_subreaper()  # The daemon detaches itself. As a child of this process, it is counted.
    begin = perf_counter()
    subprocess.run([orch, *COMMAND], check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)
    took = perf_counter() - begin
    subprocess.run([orch, "daemon", "stop"], check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)
    print(json.dumps({"wall": 1000 * took, "cpu": 1000 * cpu_of_children()}))


if __name__ == "__main__":
    main(sys.argv[1])
