"""Runs a notebook without a front end.

The program reads cells as a JSON array from stdin, and writes the output of each cell as a JSON array to stdout. It is
a separate program, so that the sockets of the kernel do not belong to the test. Usage: python run_notebook.py <
cells.json
"""

from __future__ import annotations

import json
import sys

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

__all__: list[str] = []


def main() -> None:
    """Run the cells. A cell that fails does not stop the others. A kernel that dies stops them."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in json.load(sys.stdin)])
    died = False
    try:
        NotebookClient(book, timeout=60, allow_errors=True, kernel_name="python3").execute()
    except DeadKernelError:
        died = True
    json.dump({"died": died, "cells": [[_shown(output) for output in cell.outputs] for cell in book.cells]}, sys.stdout)


def _shown(output: dict[str, object]) -> dict[str, object]:
    kind = output["output_type"]
    if kind == "stream":
        return {"kind": output["name"], "text": output["text"]}
    if kind == "error":
        return {"kind": "error", "text": f"{output['ename']}: {output['evalue']}", "lines": output["traceback"]}
    data = output["data"]
    assert isinstance(data, dict)
    return {"kind": "shown", "text": data["text/plain"], "markdown": data.get("text/markdown", "")}


if __name__ == "__main__":
    main()
