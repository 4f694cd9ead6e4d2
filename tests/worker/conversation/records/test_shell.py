"""Shell commands: the simple commands in a text, for display."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.conversation.records.shell import steps_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pytest -q", ["pytest -q"]),
        ("cd /srv/app && mix test 2>&1 | tail -5", ["mix test", "tail -5"]),
        ("make > build.log 2>&1; make test", ["make", "make test"]),
        ("CI=1 RUST_LOG=debug cargo test", ["cargo test"]),
        ("timeout 60 npm test", ["npm test"]),
        ("# run it\ngo test ./... # all", ["go test ./..."]),
        ('bash -lc "npm ci && npm test"', ["npm ci", "npm test"]),
        ("echo 'a && b; c | d' && ls", ["echo 'a && b; c | d'", "ls"]),
        ('git commit -m "a > b; c"', ['git commit -m "a > b; c"']),
        ("(cd x && make)", ["make"]),
        ("npm run dev &\nsleep 1", ["npm run dev", "sleep 1"]),
        ("ls 2>/dev/null || true", ["ls", "true"]),
        ("gradle test \\\n  --info", ["gradle test --info"]),
        ('echo "$(date; whoami)" && make', ['echo "$(date; whoami)"', "make"]),
        ("", []),
        ("cd /tmp", []),
    ],
)
def test_command_is_split_without_redirections_and_folders(text: str, shown: list[str]) -> None:
    """Operators inside quotes and substitutions do not split a command."""
    assert [" ".join(step.text.split()) for step in steps_of(text)] == shown


def test_steps_know_their_folder_output_and_document() -> None:
    """A heredoc, the target of the output and the folder of an earlier `cd` belong to a step."""
    first, second = steps_of("cd app && cat > notes.md <<'EOF'\n# don't; stop && go\nEOF\ngit add notes.md")
    assert (first.folder, first.targets, first.document) == ("app", ("notes.md",), "# don't; stop && go\n")
    assert (second.text, second.folder) == ("git add notes.md", "app")


def test_heredoc_in_a_substitution_is_a_document() -> None:
    """Quotes and operators in the text of the heredoc do not end the command."""
    message = 'fix: it\'s a "pump" (really); a && b\n\nBody'
    text = f"git add -A && git commit -m \"$(cat <<'EOF'\n{message}\nEOF\n)\" && git push"
    steps = steps_of(text)
    assert [step.words[:2] for step in steps] == [["git", "add"], ["git", "commit"], ["git", "push"]]
    assert steps[1].document.startswith('fix: it\'s a "pump" (really); a && b\n')


def test_background_commands_are_marked() -> None:
    """An "&" of a redirection does not mean the background."""
    assert [step.background for step in steps_of("serve &\nmake 2>&1\nmake &> log")] == [True, False, False]


@given(st.text(alphabet="ab '\"\\$()<>|&;#\n`E", max_size=60))
def test_any_text_is_split_without_an_error(text: str) -> None:
    """Unbalanced quotes, open substitutions and open heredocs are accepted."""
    assert all(step.text for step in steps_of(text))
