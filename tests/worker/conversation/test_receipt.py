"""Receipts: what turns did, computed from calls and results, and their text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_worker.conversation.receipt import Receipt, merge, receipt_of, with_places
from orch_worker.conversation.receipt_text import render, title_of, with_summary
from orch_worker.conversation.records.facts import ChangedFile, CommandOutcome, Commit, Effect, Failure, Place, SeenFile
from worker.conversation.conversations import Talk


def turn(*calls: tuple[str, dict[str, Any], str], error: bool = False, answer: str = "done") -> list[Message]:
    """Return a turn with `calls`, each with tool, input and result."""
    messages = [user("go")]
    for number, (name, input, text) in enumerate(calls):
        messages.append(Message("assistant", (ToolUse(f"c{number}", name, input),)))
        messages.append(Message("user", (ToolResult(f"c{number}", (Text(text),), error),)))
    return [*messages, assistant(answer)]


def record(talk: Talk, chars: int = 2_000, *, requests: bool = False) -> str:
    """Return the record of a conversation whose first message is entry 1."""
    messages = talk.messages
    return render(receipt_of(messages, range(1, len(messages) + 1)), chars, requests=requests)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ("ok\nexit code: 0", 0),
        ("Command exited with code 2", 2),
        ("[exit 127]", 127),
        ('{"stdout": "", "exit_code": 1}', 1),
        ("returncode=3", 3),
        ("all good", None),
        ("exit the building", None),
        ("exit code 7 " + "x" * 3000 + " exit code 1", 1),
    ],
)
def test_receipt_lists_commands_with_exit_codes(result: str, code: int | None) -> None:
    """The code is found at the beginning or at the end of the result."""
    (command,) = receipt_of(turn(("bash", {"command": "./deploy_all  now"}, result))).commands
    assert (command.line, command.exit_code) == ("./deploy_all now", code)


def test_every_changed_file_is_named_with_the_place_of_its_last_change() -> None:
    """Files of one folder form a group. The list is complete even if it takes most of the record."""
    talk = Talk("go")
    for number in range(40):
        talk.edit(f"/srv/app/src/module_{number}.py")
    text = record(talk.edit("/srv/app/src/module_0.py"), 900)
    assert text.startswith("Paths below /srv/app/src\nChanged: {module_1@4,module_2@6,")
    assert text.endswith("module_39@80,module_0@82}.py")


def test_files_of_a_huge_change_are_counted_by_folder() -> None:
    """If not even the names fit, no folder is left out."""
    talk = Talk("go")
    for number in range(300):
        talk.edit(f"/srv/app/package_{number % 5}/a_rather_long_name_{number}.py")
    assert record(talk, 200).endswith(", ".join(f"package_{number}/ (60)" for number in range(5)))


def test_failed_edits_are_no_changes() -> None:
    """The error stays until an edit of the same file succeeds."""
    talk = Talk("go").call(
        "edit", {"path": "a.py", "oldText": "x"}, "Could not find the exact text in a.py.", error=True
    )
    assert record(talk) == "Errors: edit a.py: Could not find the exact text in a.py. (3)"
    assert record(talk.edit("a.py")) == "Changed: a.py@4"


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        (("write_file", {"path": "a.py", "content": "x"}), "a.py"),
        (("multi_edit", {"paths": ["c.py", "d.py"]}), "{c,d}.py"),
        (("apply_patch", {"input": "*** Begin Patch\n*** Add File: n.py\n+x\n*** Update File: o.py\n"}), "{+n,o}.py"),
        (("str_replace_based_edit_tool", {"command": "create", "path": "e.py", "file_text": "x"}), "+e.py"),
        (("shell", {"command": ["bash", "-lc", "cat > f.py <<'E'\nx\nE"]}), "f.py"),
        (("bash", {"command": "cd lib && sed -i 's/a/b/' g.py && cp g.py h.py"}), "lib/{g,+h}.py"),
        (("bash", {"command": "echo x | tee notes.txt"}), ""),
        (("bash", {"command": "git mv old.py new.py"}), "new.py (from old.py)"),
        (("bash", {"command": "touch marker.txt; rm other.txt"}), "+marker.txt\nRemoved: other.txt"),
    ],
)
def test_changes_by_tools_and_commands_are_found(call: tuple[str, dict[str, Any]], changed: str) -> None:
    """Tools of different programs name their paths differently; commands write, move, copy and remove files."""
    text = render(receipt_of(turn((*call, "ok"))), 400)
    assert text.partition("\nRan:")[0] == (f"Changed: {changed}" if changed else text.partition("\nRan:")[0])


def test_view_command_of_an_editor_reads() -> None:
    """The name of the tool alone does not mean a change."""
    receipt = receipt_of(turn(("str_replace_based_edit_tool", {"command": "view", "path": "a.py"}, "x")))
    assert (receipt.files, receipt.seen) == ((), (SeenFile("a.py", 2),))


@pytest.mark.parametrize(
    ("check", "failed", "hook", "commit", "shown"),
    [
        (
            "mix credo --strict",
            "found 1 code readability issue.",
            "[CREDO]\nChecking 9 files",
            "git commit -m Fix",
            True,
        ),
        (
            "npm run check",
            "src/a.ts(3,4): error TS2339: no",
            "> npm run check\nerror TS2339",
            "git commit -m Fix",
            True,
        ),
        ("ruff check .", "Found 2 errors.", "ruff....Failed\n- hook id: ruff", "git commit -m Fix", True),
        (
            "mix credo --strict",
            "found 1 code readability issue.",
            "[CREDO]\nChecking",
            "git commit --no-verify -m Fix",
            False,
        ),
        ("mix dialyzer", "lib/a.ex:4:no_return\nTotal errors: 2", "[CREDO]\nChecking", "git commit -m Fix", False),
        ("pytest -q", "1 failed in 1s", "tests/test_pump.py needs a license", "git commit -m Fix", False),
    ],
)
def test_commit_that_a_hook_accepted_replaces_the_failure_of_its_check(
    check: str, failed: str, hook: str, commit: str, shown: bool
) -> None:
    """The hook must have run this check. Also if the commit is in a later archive."""
    talk = Talk("go").run("git commit -m Fix", f"Exit code 1\n{hook}\nPre-commit validation failed", error=True)
    talk.run(check, f"Exit code 1\n{failed}", error=True)
    count = len(talk.messages)
    talk.run(commit, "[main 64f1b9a] Fix\n 1 file changed")
    parts = [receipt_of(talk.messages[:count]), receipt_of(talk.messages[count:])]
    for text in (record(talk), render(merge(parts), 4_000)):
        assert (f"{check}: passed in the hook of 64f1b9a" in text) is shown
        assert (f"{check}: FAILED" in text) is not shown
        assert "Errors" not in text


def test_commit_resolves_files_that_could_not_be_added() -> None:
    """Also if the commit is in a later archive, or if the files were added in another way."""
    talk = Talk("go").run("git add -A css", "Exit code 1\nThe following paths are ignored", error=True)
    count = len(talk.messages)
    talk.run("git add -f css/a.css").run("git commit -m Fix", "[main 64f1b9a] Fix\n 1 file changed")
    assert "Errors: git add -A css: The following paths are ignored" in record(
        Talk("go").run("git add -A css", "Exit code 1\nThe following paths are ignored", error=True)
    )
    for receipt in (
        receipt_of(talk.messages),
        merge([receipt_of(talk.messages[:count]), receipt_of(talk.messages[count:])]),
    ):
        assert "The following paths are ignored -> resolved" in render(receipt, 4_000)


def test_last_outcome_of_a_check_counts() -> None:
    """A failure in the middle is resolved by a later success; a failed last run stays."""
    talk = (
        Talk("go")
        .run("pytest -q", "2 failed, 1 passed in 1s", error=True)
        .run("pytest -q 2>&1 | tail -3", "3 passed in 1s")
    )
    assert record(talk) == "Checks: pytest -q: 3 passed in 1s\nFixed: pytest -q: 2 failed, 1 passed in 1s -> resolved"
    talk.run("cd /srv && pytest -q", "E    KeyError: 'pump'\n1 failed, 2 passed in 1s", error=True)
    assert record(talk) == "Checks: pytest -q: FAILED: 1 failed, 2 passed in 1s: KeyError: 'pump' (7)"


def test_run_of_a_part_is_replaced_by_a_later_run_of_the_whole() -> None:
    """A later failure of the whole does not hide the part."""
    part = Talk("go").run("mix test test/a_test.exs", "5 tests, 0 failures")
    assert record(part) == "Checks: mix test test/a_test.exs: 5 tests, 0 failures"
    assert record(part.run("mix test", "87 tests, 0 failures")) == "Checks: mix test: 87 tests, 0 failures"


def test_errors_are_failing_results_and_not_lines_that_were_read() -> None:
    """Source code and search results mention errors without failing."""
    talk = (
        Talk("go")
        .read("a.py", "1\traise ValueError: x\n2\terror: y")
        .run("grep -rn Error src", "a.py:1: ValueError: no")
    )
    talk.run("cat log.txt", "RuntimeError: old").run("grep -c zzz a.py", "0\n\nCommand exited with code 1", error=True)
    assert "Error" not in record(talk).replace("grep -c", "")
    talk.run("node app.js", "Error: secret_key_base missing\n    at main (app.js:1:1)", error=True)
    assert "Errors: node app.js: Error: secret_key_base missing (11)" in record(talk)
    assert "Error: secret_key_base missing -> resolved" in record(talk.run("node app.js 2>&1 | head", "listening"))


@pytest.mark.parametrize(
    ("command", "output", "error", "commit"),
    [
        ('git commit -m "Fix pump"', "[main 1a2b3c4] Fix pump\n 1 file changed", False, "1a2b3c4 Fix pump"),
        ('git commit -m "Fix" -m "Because"', "", False, "Fix"),
        ("git commit -am 'Fix; it'", "", False, "Fix; it"),
        ("git commit -F - <<'EOF'\nFix it\n\nbody\nEOF", "", False, "Fix it"),
        ("git commit -F msg.txt", "", False, "(message of msg.txt)"),
        ("git commit --amend --no-edit", "[main 9f8e7d6] Fix pump", False, "9f8e7d6 Fix pump"),
        (
            'git commit -m "Fix" && git push',
            "husky - pre-commit hook exited with code 1 (error)",
            True,
            "rejected «Fix»: husky - pre-commit hook exited with code 1 (error)",
        ),
        ("git commit -m x", "On branch main\nnothing to commit, working tree clean", True, ""),
    ],
)
def test_commits_have_hash_and_subject(command: str, output: str, error: bool, commit: str) -> None:
    """The subject comes from git's output, from -m, from a heredoc or from the file of -F."""
    text = record(Talk("go").run(command, output, error=error))
    assert f"Commits: {commit}" in text if commit else "Commits:" not in text


@pytest.mark.parametrize(
    ("command", "output", "effect"),
    [
        ("git push", "To h:p.git\n   1a2b3c4..9f8e7d6  main -> main", "pushed main -> main"),
        ("git checkout -b topic", "Switched to a new branch 'topic'", "on new branch topic"),
        ("git tag v1.2", "", "tag v1.2"),
        ("pip install orch", "Successfully installed orch", "installed: pip install orch"),
        ("npm i -D vitest", "added 3 packages", "installed: npm i -D vitest"),
        ("apt-get install -y jq", "", "installed: apt-get install -y jq"),
        (
            "python manage.py migrate",
            "Applying app.0001_initial... OK",
            "migrated: python manage.py migrate (app.0001_initial)",
        ),
        ("alembic upgrade head", "Running upgrade  -> 1975ea83b712", "migrated: alembic upgrade head (1975ea83b712)"),
        ("npx prisma migrate deploy", "", "migrated: npx prisma migrate deploy"),
        ("docker compose up -d", "Started", "left running: docker compose up -d"),
        ("sleep 100 &", "", "job left running: sleep 100"),
        (
            "gh pr create --fill",
            "https://example.org/me/pump/pull/7",
            "gh pr create: https://example.org/me/pump/pull/7",
        ),
    ],
)
def test_lasting_effects_are_listed(command: str, output: str, effect: str) -> None:
    """A failed command has no lasting effect."""
    assert f"Lasting: {effect}" in record(Talk("go").run(command, output)).split("\n")
    assert "Lasting" not in record(Talk("go").run(command, "error: no such thing", error=True))


def test_ended_jobs_are_not_left_running() -> None:
    """A job ends by a report, by a notification, or by a kill."""
    start = "Command running in background with ID: b7"
    running = Talk("go").run("npm run dev", start, run_in_background=True)
    assert "job left running: npm run dev (id b7)" in record(running)
    assert "Lasting" not in record(
        Talk("go").run("npm run dev", start, background=True).call("KillShell", {"id": "b7"})
    )
    own = Talk("go").run("npm run dev", "Started job_1. bg_status shows its status.", background=True)
    assert "(id job_1)" in record(
        own.call("bg_status", {"id": "job_1"}, "job_1 running for 3 s\ncompiled, 3 tests finished")
    )
    assert "Lasting" not in record(own.call("bg_status", {"id": "job_1"}, "job_1 ended with exit code 0"))
    running.hear("<task-notification><task-id>b7</task-id><status>completed</status></task-notification>")
    assert "Lasting" not in record(running)


@pytest.mark.parametrize(
    "result",
    [
        "The user doesn't want to proceed with this tool use. To tell you how, the user said:\nuse staging",
        (
            "[Denied: Bash was not run: use staging. Stop and ask what to do instead: do not call it again, and do not "
            "look for another way to do it.]"
        ),
        "User rejected the command with the reason: use staging",
        "The user refused this call: use staging",
        "Permission denied by user: use staging",
    ],
)
def test_refusals_are_quoted_with_the_call(result: str) -> None:
    """The record shows the tool, its arguments and the reason. A refusal is no error."""
    talk = Talk("go").run("./deploy.sh production", result, error=True)
    assert record(talk) == "User: refused Bash(./deploy.sh production): «use staging»"


def test_words_of_the_user_during_the_work_are_quoted() -> None:
    """They stand beside the results of calls."""
    talk = Talk("go").read("a.py")
    last = talk.messages[-1]
    talk.messages[-1] = Message("user", (*last.content, Text("no, take b.py")))
    assert "User: «no, take b.py»" in record(talk)


def test_requests_and_answers_stay_in_a_record_of_several_turns() -> None:
    """An interruption and encouragement are no requests. Requests become shorter before one is left out."""
    talk = Talk("Fix the pump. It leaks.").say("Fixed the pump. It was the seal.")
    talk.hear("[Request interrupted by user]").say("Stopped.").hear("continue").say("Continued.")
    talk.hear("Now paint it in a nice colour that everybody in the whole town likes to look at").say("Painted.")
    parts = [receipt_of(talk.messages[place : place + 2]) for place in range(0, len(talk.messages), 2)]
    text = render(merge(parts), 400, requests=True)
    assert text == (
        "Requests:\n- «Fix the pump. It leaks.» -> Fixed the pump. It was the seal.\n"
        "- «Now paint it in a nice colour that everybody in the whole town likes to look at» -> Painted."
    )
    assert render(merge(parts), 100, requests=True).count("\n- «") == 2
    assert "Requests" not in render(merge(parts), 400)


def test_fetched_specifications_are_named_with_their_place() -> None:
    """An issue, a page and a design document state what is wanted."""
    talk = Talk("go").run("gh issue view 7", "Stop the pump\nOPEN")
    talk.call("WebFetch", {"url": "https://example.org/spec", "prompt": "limits"}, "80 degrees")
    talk.read("/srv/app/docs/design.md").read("/srv/app/src/pump.py")
    text = record(talk)
    assert "Specifications: Stop the pump (3); https://example.org/spec (5); docs/design.md (7)" in text
    assert text.endswith("Read: src/pump.py")


def test_last_sentences_stay_if_there_is_no_answer() -> None:
    """They state what was about to happen. A turn with an answer does not need them."""
    talk = Talk("go").run("ls", said="The limit is wrong. Let me fix limits.py next:")
    assert record(talk) == "Last said: «The limit is wrong. Let me fix limits.py next:»"
    assert "Last said" not in record(talk.say("Fixed."))


def test_figures_are_shown_with_their_words_unless_the_answer_has_them() -> None:
    """Figures in files that the agent read are not listed."""
    messages = turn(("read_file", {"path": "a"}, "999999 ms"), answer="It takes 12.7 ms, on 1,024 pumps, 83 %.")
    assert receipt_of(messages).figures == ("It takes 12.7 ms", "on 1,024 pumps")
    assert "Figures" not in render(receipt_of(messages), 400, "It takes 12.7 ms, on 1,024 pumps, 83 %.")


def test_calls_of_other_tools_are_shown_with_their_arguments() -> None:
    """Calls that only look something up are counted if there is nothing else."""
    talk = Talk("go").call("get_user_details", {"user_id": "mia"}, "{}")
    assert record(talk) == "Tools: get_user_details"
    talk.call("book_reservation", {"user_id": "mia", "cabin": "economy"}, "{}")
    assert record(talk) == "Ran: book_reservation(user_id=mia, cabin=economy)"


@pytest.mark.parametrize(
    ("talk", "title"),
    [
        (Talk("continue").run('git commit -m "Fix pump"', "[main 1a2b3c4] Fix pump"), "Fix pump"),
        (Talk("continue").edit("/srv/a.py").edit("/srv/b.py"), "changed b.py, a.py"),
        (Talk("continue").run("pytest", "3 passed in 1s"), "ran pytest -> 3 passed in 1s"),
        (Talk("continue").read("/srv/a.py"), "read a.py"),
        (Talk("continue").say("Nothing is left."), ""),
    ],
)
def test_title_says_what_was_done(talk: Talk, title: str) -> None:
    """A commit tells most, then changed files, checks, and files read."""
    assert title_of(receipt_of(talk.messages)) == title


def test_receipt_fits_its_limit() -> None:
    """Changes stay longest. The latest items of a category stay."""
    talk = Talk("go")
    for number in range(90):
        talk.run(f"./run_{number} --all", "exit code 0").edit(f"/srv/f{number}.py").read(f"/srv/r{number}.py")
    for chars in (0, 1, 40, 200, 1000, 3000):
        assert len(record(talk, chars)) <= chars
    assert "f0@4,f1@10" in record(talk, 1300)
    text = record(talk, 2900)
    assert "./run_89 --all" in text
    assert "./run_0 --all" not in text


def test_receipt_of_a_turn_without_calls_says_so() -> None:
    """A turn that contains only text has a fixed receipt."""
    assert render(receipt_of([user("hi"), assistant("hello")]), 100) == "No tool was used."


def test_merged_receipts_show_the_last_state() -> None:
    """A changed file is not listed as read. A later success resolves an earlier failure, and a later end ends a job."""
    first = receipt_of(Talk("one").read("/srv/a.py").run("pytest", "1 failed in 1s", error=True).messages)
    job = Receipt(lasting=(Effect("job b7", "job left running: serve"),))
    second = receipt_of(Talk("two").edit("/srv/a.py").run("pytest", "1 passed in 1s").messages)
    both = merge([first, job, second, Receipt(lasting=(Effect("job b7", "", over=True),))])
    assert (both.seen, [file.path for file in both.files], both.lasting) == ((), ["/srv/a.py"], ())
    assert [failure.resolved for failure in both.failures] == [True]
    assert [(command.result, command.runs) for command in both.commands] == [("1 passed in 1s", 2)]
    assert both.tools == {"Read": 1, "Bash": 2, "Edit": 1}


def test_file_that_one_turn_created_and_another_removed_was_tried() -> None:
    """Creation and removal may be in different turns, and the removal may name the folder."""
    created = receipt_of(Talk("one").write("/srv/app/probe/a.py").write("/srv/app/keep.py").messages)
    removed = receipt_of(Talk("two").run("cd /srv/app && rm -rf probe").messages)
    assert (
        render(merge([created, removed]), 400)
        == "Paths below /srv/app\nChanged: +keep.py\nTried and removed: probe/a.py"
    )


def test_places_move_with_the_archive() -> None:
    """A place is an entry of the new archive, or an entry of an archive that is given by the beginning of its id."""
    receipt = receipt_of(Talk("go").edit("a.py").messages, range(1, 4))
    assert with_places(receipt, 10).files[0].place == Place(12)
    kept = with_places(receipt, 0, "b0d9f3a81c55")
    assert str(kept.files[0].place) == "b0d9f3a8:2"
    assert with_places(kept, 10) == kept


def test_summary_is_preceded_by_facts_that_it_omits() -> None:
    """Facts that the summary states are not repeated."""
    receipt = Receipt(
        seen=(SeenFile("looked.py"),),
        files=(ChangedFile("/srv/a.py", Place(4)), ChangedFile("/srv/b.py", Place(6))),
        commands=(CommandOutcome("pytest", 1, True, "1 failed", True), CommandOutcome("ls", 0)),
        failures=(Failure("node", "node", "Error: no port"), Failure("x", "x", "gone", resolved=True)),
        commits=(Commit("Fix", "1a2b3c4"), Commit("More", "9f8e7d6")),
        lasting=(Effect("job", "job left running: serve &"),),
    )
    text = with_summary(receipt, "Outcome: rewrote a.py in 1a2b3c4.")
    assert text == (
        "Changed: /srv/b.py@6\nChecks: pytest: FAILED: 1 failed\nCommits: 9f8e7d6 More\n"
        "Lasting: job left running: serve &\nErrors: node: Error: no port\nOutcome: rewrote a.py in 1a2b3c4."
    )
    assert with_summary(Receipt(seen=(SeenFile("looked.py"),)), "Fine.") == "Fine."


@given(
    st.dictionaries(
        st.sampled_from(["path", "command", "paths", "background", "x", "content", "edits", "input"]),
        st.one_of(st.none(), st.integers(), st.text(max_size=9), st.lists(st.integers(), max_size=2)),
    ),
    st.sampled_from(["bash", "edit", "read", "AskUserQuestion", "WebFetch", "delete_file"]),
    st.text(max_size=50),
    st.integers(-5, 300),
    st.booleans(),
)
def test_receipts_accept_malformed_arguments_and_results(
    input: dict[str, Any], tool: str, result: str, chars: int, error: bool
) -> None:
    """The record has at most the requested length for any input."""
    assert len(render(receipt_of(turn((tool, input, result), error=error)), chars)) <= max(chars, 0)
