"""Workers of `multiprocess`'s forkserver, with a preload that imports and freezes the same modules as the template of
orch.

Answers each line `{"workers": N}` with a line `{"seconds": S, "descriptors": D}`. S is the time from the first start
until all workers have answered a ping. D is the number of descriptors that this process opened for each worker.
`PRELOAD` in the environment is `lean` or `sdk`. Usage: forkserver_peer.py FOLDER
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

WAIT_SECONDS = 60


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def up_and_answering(context: Any, hub: Any, number: int) -> dict[str, float]:
    """Start `number` workers, ping each worker when it says hello, and stop all workers when all have answered."""
    import freezing_preload

    before, begin = descriptors(), perf_counter()
    processes = [context.Process(target=freezing_preload.worker, args=(hub.address,)) for _ in range(number)]
    for process in processes:
        process.start()
    answered = []
    while len(answered) < number:
        identity, message = hub.receive()
        if message.kind == "hello":
            hub.send(identity, "ping")
        else:
            answered.append(identity)
    seconds, opened = perf_counter() - begin, descriptors() - before
    for identity in answered:
        hub.send(identity, "stop")
    for process in processes:
        process.join(WAIT_SECONDS)
        process.close()
    return {"seconds": seconds, "descriptors": opened / number}


def main(folder: Path) -> None:
    """Answer lines until stdin ends."""
    import multiprocess
    import zmq_echo

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # The forkserver finds the preload module only through this variable.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    context = multiprocess.get_context("forkserver")
    # If `__main__` is in the list, the children need not import this file again.
    context.set_forkserver_preload(["__main__", "freezing_preload"])
    hub = zmq_echo.Hub(folder)
    up_and_answering(context, hub, 1)
    for line in sys.stdin:
        print(json.dumps(up_and_answering(context, hub, json.loads(line)["workers"])), flush=True)
    hub.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
