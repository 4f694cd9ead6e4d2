"""The cost of a worker without a template. A new interpreter imports both SDKs, then connects a DEALER socket."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    import anthropic  # noqa: F401
    import openai  # noqa: F401
    import zmq_echo

    zmq_echo.serve(sys.argv[1])
