"""The built-in hooks that remind an agent to describe its work and to check its changes."""

from __future__ import annotations

from typing import Any

from hook_events import Ctx, call, responded, returned
from orch_protocol.hooks.options import CompletionChecklist, HookOptions, NarrationGuard
from orch_worker.hooks.loader import configured_hooks


class TestNarrationGuard:
    """Reminders for an agent that makes calls without text."""

    def heard(self, *steps: tuple[str, list[str]], after: int = 3) -> list[str]:
        """Return the reminders in a turn with these responses. A response is a text and the names of its calls."""
        [hook] = configured_hooks(["narration_guard"], HookOptions(narration_guard=NarrationGuard(after)))
        ctx = Ctx()
        for text, calls in steps:
            assert call(hook, responded(text, calls), ctx) is None
        return ctx.said

    def test_reminder_after_every_three_silent_steps(self) -> None:
        """Three responses with calls and no text cause one reminder, and six cause two."""
        silent = ("", ["read_file"])
        assert self.heard(silent, silent) == []
        assert len(self.heard(silent, silent, silent, silent, silent)) == 1
        assert len(self.heard(*[silent] * 6)) == 2
        assert "3 rounds of tool calls" in self.heard(*[silent] * 3)[0]

    def test_text_with_calls_resets_the_count(self) -> None:
        """White space does not reset the count."""
        silent, telling, blank = ("", ["read_file"]), ("I look at it.", ["read_file"]), (" \n", ["read_file"])
        assert self.heard(silent, silent, telling, silent, silent) == []
        assert len(self.heard(silent, silent, blank)) == 1

    def test_response_without_calls_resets_the_count(self) -> None:
        """A response without text and calls also resets the count."""
        assert self.heard(("", ["a"]), ("", []), ("", ["a"]), after=2) == []


class Worker:
    """An agent with the completion checklist, in one turn."""

    def __init__(self, **options: Any) -> None:
        given = HookOptions(completion_checklist=CompletionChecklist(**options))
        [self.hook] = configured_hooks(["completion_checklist"], given)
        self.ctx = Ctx()

    def writes(self, *files: str) -> None:
        """Change files."""
        assert call(self.hook, returned("write_file", files_changed=files), self.ctx) is None

    def runs(self, name: str = "bash", text: str = "", input: dict[str, Any] | None = None, **fields: Any) -> None:
        """Call a tool that runs a command."""
        assert call(self.hook, returned(name, input, text=text, **fields), self.ctx) is None

    def stops(self) -> str:
        """Answer without a call. Return the reminder, or "" if there is none."""
        before = len(self.ctx.said)
        assert call(self.hook, responded("It is done."), self.ctx) is None
        return "".join(self.ctx.said[before:])


class TestCompletionChecklist:
    """Reminders for an agent that stops after changing files."""

    def test_unverified_changes_are_asked_about_at_the_end(self) -> None:
        """The reminder lists the files and is sent when the agent would stop."""
        agent = Worker()
        agent.writes("pump.py", "valve.py")
        call(agent.hook, responded("Next,", ["read_file"]), agent.ctx)
        assert agent.ctx.said == []
        found = agent.stops()
        assert "you changed pump.py, valve.py, and have run nothing since" in found

    def test_successful_command_after_the_last_change_is_a_check(self) -> None:
        """After another change, a new check is needed."""
        agent = Worker()
        agent.writes("pump.py")
        agent.runs("run_python_script")
        assert agent.stops() == ""
        agent.writes("pump.py")
        assert "pump.py" in agent.stops()

    def test_failed_command_after_a_change_is_named(self) -> None:
        """A failed command is not a check, and a later successful command is a check."""
        agent = Worker()
        agent.writes("pump.py")
        agent.runs(is_error=True)
        assert "what you ran last (bash) failed" in agent.stops()
        agent.writes("pump.py")
        agent.runs()
        assert agent.stops() == ""

    def test_reminders_stop_at_the_configured_number(self) -> None:
        agent = Worker(reminders=1)
        agent.writes("pump.py")
        assert agent.stops()
        assert agent.stops() == ""

    def test_background_job_counts_as_a_check_when_it_has_ended(self) -> None:
        """A job that was started or is running is not a check."""
        agent = Worker(reminders=9)
        agent.writes("pump.py")
        agent.runs(input={"background": True}, text="Started bg1.")
        agent.runs("bg_status", "[bg1 running for 3 s; bytes 0 to 0 of 0]")
        assert "have run nothing since" in agent.stops()
        agent.runs("bg_status", "out\n[bg1 ended with exit status 1; bytes 0 to 4 of 4]")
        assert "(bg_status) failed" in agent.stops()
        agent.runs("bg_status", "out\n[bg1 ended with exit status 0; bytes 0 to 4 of 4]")
        assert agent.stops() == ""

    def test_denied_calls_and_read_only_tools_are_no_check(self) -> None:
        agent = Worker()
        agent.writes("pump.py")
        agent.runs(ran=False, is_error=True)
        agent.runs("grep_files")
        assert "have run nothing since" in agent.stops()

    def test_ignored_file_patterns_need_no_check(self) -> None:
        """Files that match `ignore` cause no reminder."""
        agent = Worker()
        agent.writes("NOTES.md", "docs/a.rst")
        assert agent.stops() == ""
        strict = Worker(ignore=())
        strict.writes("NOTES.md")
        assert "NOTES.md" in strict.stops()

    def test_reminder_names_five_files_and_counts_the_rest(self) -> None:
        agent = Worker()
        agent.writes(*[f"f{number}.py" for number in range(9)])
        assert "f4.py and 4 more" in agent.stops()
