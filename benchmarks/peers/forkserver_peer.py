"""Workers of `multiprocess`'s forkserver, with a preload that imports what our template does and freezes it.

Answers each line `{"workers": N}` with `{"seconds": from the first start until all have answered a ping,
"descriptors": how many this process opened for each}`. `PRELOAD` in the environment is `lean` or `sdk`.
Usage: forkserver_peer.py FOLDER
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
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def up_and_answering(context: Any, hub: Any, number: int) -> dict[str, float]:
    """Start `number` workers, ping each as it says hello, and stop them once all have answered."""
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
    # The forkserver finds the preload module by this alone.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    context = multiprocess.get_context("forkserver")
    # With `__main__` among them the children need not import this file anew.
    context.set_forkserver_preload(["__main__", "freezing_preload"])
    hub = zmq_echo.Hub(folder)
    up_and_answering(context, hub, 1)
    for line in sys.stdin:
        print(json.dumps(up_and_answering(context, hub, json.loads(line)["workers"])), flush=True)
    hub.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
