"""Adds `/todo`, which lists the marks for open work in the files of the agent's folder, or starts a turn that does this
work.
"""

import os
import re

from orch import Effect

MARK = re.compile(rb"\b(?:T[O]DO|F[I]XME)\b.*")  # The brackets keep this file from matching
LEFT_OUT = {"__pycache__", "build", "dist", "node_modules", "venv"}
MAX_BYTES = 1 << 20
MOST = 200


def told(error):
    """Raise the error, so that the user sees why a folder cannot be listed."""
    raise error


def places(folder, wanted):
    """Yield the file, line and text of each mark below `folder` whose file name or text contains `wanted`."""
    for root, folders, files in os.walk(folder, onerror=told):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(root, name)
            if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > MAX_BYTES:
                continue
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if match := MARK.search(line):
                        text = match[0].decode(errors="replace").strip()
                        if wanted in f"{path} {text}":
                            yield f"{os.path.relpath(path, folder)}:{number}: {text}"


def register(extension):
    @extension.command("todo", arguments=["[wanted...]", "--count", "--do"])
    def todo(args, ctx):
        """list the marks for open work in the folder's files; --do: let the agent do the work"""
        found = list(places(ctx.cwd, args.get("wanted", "")))
        if "count" in args:
            return str(len(found))
        if not found:
            return "nothing is marked"
        shown = "\n".join(found[:MOST] + [f"and {len(found) - MOST} more"] * (len(found) > MOST))
        if "do" in args:
            return Effect("ask", text=f"Work these off, one after the other, and remove each mark:\n\n{shown}")
        return shown
