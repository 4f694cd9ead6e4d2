"""Records of turns in full: what a model reads in place of the messages.

The turns have the shapes of recorded sessions. Each expected record was written by hand.
"""

from __future__ import annotations

import pytest

from orch_worker.conversation.receipt import receipt_of
from orch_worker.conversation.receipt_text import render
from worker.conversation.conversations import Talk

ROOT = "/srv/work/pump"
HOOK = (
    "Pre-commit validation failed:\\n\\n[FORMAT] Code is not formatted.\\nRun 'mix format' to fix.\\n\\n[CREDO]\\n"
    "Checking 114 source files ...\n\n  Software Design\n"
)
SUBJECT = "feat: stop at 80 degrees (pump-7)"
COMMIT = f"git add -A && git commit -m \"$(cat <<'EOF'\n{SUBJECT}\n\nIt's measured now.\nEOF\n)\""


def started_from_an_issue() -> Talk:
    """A turn that was interrupted in the middle of the work."""
    talk = Talk("Work on pump-7. Run bd show pump-7 first.")
    talk.run("bd show pump-7", "○ pump-7 · Stop the pump when it is hot   [● P1 · OPEN]\nOwner: me\n\nStop at 80.")
    talk.run("bd update pump-7 --status in_progress", "✓ Updated pump-7")
    talk.read(f"{ROOT}/lib/pump/limits.ex").read(f"{ROOT}/lib/pump/sensor.ex")
    talk.write(f"{ROOT}/lib/pump/guard.ex", said="Let me create the guard:")
    talk.edit(f"{ROOT}/lib/pump/limits.ex", said="Good - the limit moves to the guard. Let me remove it here.")
    return talk


def continued_to_a_commit() -> Talk:
    """Failures in the middle, rejected commits, and a push at the end."""
    talk = Talk("continue")
    talk.run(f"cd {ROOT} && mix test 2>&1 | tail -5", "1) test stops\n\n87 tests, 2 failures")
    talk.edit(f"{ROOT}/lib/pump/guard.ex")
    talk.run(COMMIT, HOOK, error=True)
    talk.run("mix format")
    talk.run(COMMIT, f"[pump-7 64f1b9a] {SUBJECT}\n create mode 100644 lib/pump/guard.ex")
    talk.run("git push", "Exit code 128\nfatal: The current branch pump-7 has no upstream branch.", error=True)
    talk.run("git push -u origin pump-7", "To github.com:me/pump.git\n * [new branch]      pump-7 -> pump-7")
    talk.run("mix test 2>&1 | tail -5", "Finished in 5.4 seconds\n87 tests, 0 failures")
    return talk.say("Committed and pushed.")


def notified_of_a_job() -> Talk:
    """A notification of a finished job starts this turn."""
    talk = Talk("<task-notification>\n<task-id>b76</task-id>\n<status>completed</status>\n</task-notification>")
    talk.read("/tmp/b76.output", "15 tests, 0 failures")
    return talk.say("All 15 tests pass.")


def worked_through_packages() -> Talk:
    """Several commits with one check, which fails and then passes."""
    talk = Talk("ok, start implementing")
    talk.call("write", {"path": f"{ROOT}/src/core/shell.ts", "content": "x"}, "Successfully wrote 900 bytes")
    talk.run(
        f"cd {ROOT} && npm run check",
        "> tsc --noEmit\n\nsrc/core/shell.ts(16,58): error TS2305: no member 'Mode'.\n\nCommand exited with code 2",
        error=True,
    )
    talk.call("edit", {"path": f"{ROOT}/src/core/shell.ts", "oldText": "Mode", "newText": "mode"}, "ok")
    talk.run(f"cd {ROOT} && npm run check", "> tsc --noEmit\n\nChecked 232 files in 119ms. No fixes applied.")
    talk.run(
        f'cd {ROOT} && git add -A && git commit -m "WP1: Create shell.ts"', "[refactor 3f30550] WP1: Create shell.ts"
    )
    talk.call("edit", {"path": f"{ROOT}/docs/plan.md", "oldText": "- [ ]", "newText": "- [x]"}, "ok")
    talk.run(f'cd {ROOT} && git commit -qam "WP1: Update the plan" -m "Nothing else."', "")
    return talk.say("WP1 is complete.")


def moved_files() -> Talk:
    """Files that commands move and change."""
    talk = Talk("can leave it")
    talk.run(f"cd {ROOT}/src && mkdir -p utils && mv fuzzy.ts clip.ts utils/ && git mv shell.ts core/exec.ts")
    talk.run(f"cd {ROOT}/src\n\n# imports\nsed -i '' 's|./fuzzy|./utils/fuzzy|' main.ts core/session.ts")
    return talk.say("Done.")


def reverted() -> Talk:
    """Work that was thrown away."""
    talk = Talk("actually, can you revert that?")
    talk.write(f"{ROOT}/src/components/editor.ts").write(f"{ROOT}/src/components/list.ts")
    talk.run(f"cd {ROOT} && git checkout -- . && rm -rf src/components", "")
    return talk.say("Reverted.")


def talked_only() -> Talk:
    """A turn without calls."""
    return Talk("will this also allow us to test the core?").say("Yes. The core has no terminal.")


def left_services_running() -> Talk:
    """Installations, a migration, and jobs of which one has ended."""
    talk = Talk("Start the application")
    talk.run("mix deps.get", "* Getting jason (Hex package)")
    talk.run(
        "MIX_ENV=dev mix ecto.migrate 2>&1", "20:00:01 [info] == Running 20260211 Pump.CreateRuns.change/0 forward"
    )
    talk.run("mix phx.server", "Command running in background with ID: b2c", run_in_background=True)
    talk.run("mix test --seed 0", "Command running in background with ID: b3d", run_in_background=True)
    talk.call("TaskOutput", {"task_id": "b3d"}, "<status>completed</status>\n87 tests, 0 failures")
    talk.run("mix phx.routes", "** (RuntimeError) environment variable SECRET_KEY_BASE is missing.", error=True)
    talk.run("SECRET_KEY_BASE=x mix phx.routes", "GET / PumpWeb.PageController")
    return talk.say("It listens on port 4000.")


def refused() -> Talk:
    """A call that the user refused, and words of the user during the work."""
    talk = Talk("Clean up")
    talk.run(
        "git push --force origin main",
        "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file "
        "edit, the file was NOT changed). To tell you how to proceed, the user said:\nnever force-push main",
        error=True,
    )
    talk.call(
        "AskUserQuestion",
        {"questions": [{"question": "Which branch?"}]},
        'User has answered your questions: "Which branch?"="cleanup". You can now continue.',
    )
    talk.edit(f"{ROOT}/lib/mode.ex", "mode: :none", "mode: :shared", said="Let me set the mode to `:auto`.")
    return talk.say("Cleaned up.")


def tried_a_probe() -> Talk:
    """A file that was created and removed again, and a commit with its message in a file."""
    talk = Talk("Find out why it stops")
    talk.write(f"{ROOT}/probe.py", "print(1)")
    talk.run(
        f"python {ROOT}/probe.py",
        'Traceback (most recent call last):\n  File "probe.py"\nValueError: 4 bar',
        error=True,
    )
    talk.run(f"grep -rn Error {ROOT}/lib/errors.py", "12:raise ValueError: never printed")
    talk.run(f"rm {ROOT}/probe.py")
    talk.edit(f"{ROOT}/lib/sensor.py")
    talk.write("/tmp/message.txt", "Read the sensor in bar\n\nDetails.")
    talk.run(f"cd {ROOT} && git commit -a -F /tmp/message.txt", "")
    return talk.say("The sensor returns bar, the limit was in kPa: 400 kPa are 4 bar.")


RECORDS = [
    (
        started_from_an_issue,
        f"""\
Paths below {ROOT}/lib/pump
Changed: {{+guard@10,limits@12}}.ex
Specifications: pump-7 · Stop the pump when it is hot (3)
Ran: bd update pump-7 --status in_progress
Read: sensor.ex
Last said: «Good - the limit moves to the guard. Let me remove it here.»""",
    ),
    (
        continued_to_a_commit,
        f"""\
Changed: +{ROOT}/lib/pump/guard.ex@4
Checks: mix test: 87 tests, 0 failures
Commits: 64f1b9a {SUBJECT} (rejected before: Pre-commit validation failed: [FORMAT] Code is not formatted.)
Lasting: pushed pump-7 -> pump-7
Fixed: mix test: 87 tests, 2 failures -> resolved; \
git push: fatal: The current branch pump-7 has no upstream branch. -> resolved
Ran: mix format""",
    ),
    (notified_of_a_job, "Read: /tmp/b76.output"),
    (
        worked_through_packages,
        f"""\
Paths below {ROOT}
Changed: src/core/shell.ts@6, docs/plan.md@12
Checks: npm run check: Checked 232 files in 119ms. No fixes applied.
Commits: 3f30550 WP1: Create shell.ts; WP1: Update the plan
Fixed: npm run check: src/core/shell.ts(16,58): error TS2305: no member 'Mode'. -> resolved""",
    ),
    (
        moved_files,
        f"""\
Paths below {ROOT}/src
Changed: utils/{{fuzzy@2 (from ./),clip@2 (from ./)}}.ts, core/{{exec@2 (from shell.ts),session@4}}.ts, main.ts@4""",
    ),
    (
        reverted,
        f"""\
Paths below {ROOT}/src/components
Tried and removed: {{editor,list}}.ts
Lasting: git checkout -- .""",
    ),
    (talked_only, "No tool was used."),
    (
        left_services_running,
        """\
Checks: mix test --seed 0: 87 tests, 0 failures
Lasting: installed: mix deps.get; migrated: mix ecto.migrate (20260211 Pump.CreateRuns.change/0); \
job left running: mix phx.server (id b2c)
Fixed: mix phx.routes: ** (RuntimeError) environment variable SECRET_KEY_BASE is missing. -> resolved
Ran: mix phx.routes""",
    ),
    (
        refused,
        f"""\
User: refused Bash(git push --force origin main): «never force-push main»; «"Which branch?"="cleanup".»
Changed: {ROOT}/lib/mode.ex@6
Differs: announced :auto, typed :shared in mode.ex@6""",
    ),
    (
        tried_a_probe,
        f"""\
Paths below {ROOT}
Changed: lib/sensor.py@10, +/tmp/message.txt@12
Tried and removed: probe.py
Commits: Read the sensor in bar
Errors: python probe.py: ValueError: 4 bar (5)
Read: lib/errors.py""",
    ),
]


@pytest.mark.parametrize(("talk", "record"), RECORDS, ids=[talk.__name__ for talk, _ in RECORDS])
def test_record_of_a_turn_is_as_a_person_would_write_it(talk: object, record: str) -> None:
    """The record fits into 220 tokens. A place is the number of an entry of the archive."""
    assert callable(talk)
    messages = talk().messages
    answer = "" if messages[-1].role == "user" else str(messages[-1].content)
    assert render(receipt_of(messages, range(1, len(messages) + 1)), 880, answer) == record
