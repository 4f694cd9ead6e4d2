"""Brings `/todo`: what is marked as to be done in the files of the agent's folder, or a prompt to work it off."""

import os
import re

from orch import Effect

MARK = re.compile(rb"\b(?:T[O]DO|F[I]XME)\b.*")  # in brackets, so that it does not find itself
LEFT_OUT = {"__pycache__", "build", "dist", "node_modules", "venv"}
MOST_BYTES = 1 << 20
MOST = 200


def told(error):
    """Let whoever asks read why a folder cannot be listed, rather than that nothing is there."""
    raise error


def places(folder, wanted):
    """Yield file, line and text of each mark below `folder` whose file or text has `wanted` in it."""
    for root, folders, files in os.walk(folder, onerror=told):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(root, name)
            if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
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
        """list what is marked as to be done in the folder's files; --do: let the agent work it off"""
        found = list(places(ctx.cwd, args.get("wanted", "")))
        if "count" in args:
            return str(len(found))
        if not found:
            return "nothing is marked"
        shown = "\n".join(found[:MOST] + [f"and {len(found) - MOST} more"] * (len(found) > MOST))
        if "do" in args:
            return Effect("ask", text=f"Work these off, one after the other, and remove each mark:\n\n{shown}")
        return shown
