"""Run the script on a copy of the project in a real worker, without archival, and record the session."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from orch import Config, Orchestrator, ScriptedBackend

HERE = Path(__file__).parent
TASK = "Work on the project in this folder."


def main() -> None:
    script = json.loads((HERE / "script.json").read_text())
    steps = [step for turn in script["turns"] for step in turn["steps"]]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "tidegauge"
        shutil.copytree(HERE / "project", project)
        with Orchestrator(home=Path(folder) / "home", config=Config()) as o:
            agent = o.spawn(TASK, backend=ScriptedBackend(steps), preset="work", cwd=project)
            for turn in script["turns"]:
                print(agent.query(turn["prompt"]).text, end="\n\n")
            shutil.copy(Path(agent.state().folder) / "session.jsonl", HERE / "session.jsonl")


if __name__ == "__main__":
    main()
