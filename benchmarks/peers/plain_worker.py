"""What a worker costs without a template: a new interpreter that imports both SDKs, then connects a DEALER."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    import anthropic  # noqa: F401
    import openai  # noqa: F401
    import zmq_echo

    zmq_echo.serve(sys.argv[1])
