"""Outcomes: which commands verify something, and the line of their output that states the result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.conversation.records.outcomes import Verdict, check_key, failure_line, verdicts, verifies, with_reason
from orch_worker.conversation.records.shell import steps_of


@pytest.mark.parametrize(
    "command",
    [
        *(
            "pytest -q",
            "python -m pytest tests",
            "uv run pytest",
            "tox -e py311",
            "mypy src",
            "ruff check .",
            "cargo test",
        ),
        *("cargo clippy --all", "go test ./...", "go vet ./...", "npm test", "npm run test:unit", "npx vitest run"),
        *("npx tsc --noEmit", "yarn lint", "pnpm build", "bun test", "mix test", "mix credo --strict", "mix compile"),
        *("mix format --check-formatted", "./gradlew test", "mvn verify", "dotnet test", "dotnet build", "rspec"),
        *("bundle exec rspec", "bin/rails test", "ctest --test-dir build", "cmake --build build", "make", "make check"),
        *(
            "bash -n run.sh",
            "node --check a.js",
            "./scripts/run_tests.sh",
            "flutter test",
            "swift test",
            "zig build test",
        ),
        *("shellcheck a.sh", "terraform validate", "php artisan test", "vendor/bin/phpunit", "deno test", "sbt test"),
        *("prettier_check.sh", "black --check .", "npx prettier --check src", "ruff format --check ."),
    ],
)
def test_command_verifies(command: str) -> None:
    """Tests, builds and checks of many ecosystems verify something."""
    (step,) = steps_of(command)
    assert verifies(step) == (command not in ("ruff format --check . --x",))


@pytest.mark.parametrize(
    "command",
    [
        *(
            "ls tests",
            "cat test_a.py",
            "grep -rn test src",
            "git diff tests",
            "npm install",
            "npm run dev",
            "pip install pytest",
        ),
        *("go get example.org/x", "cargo add serde", "docker compose up", "echo test", "mkdir build", "rm -rf build"),
        *("python script.py", "curl http://localhost/test", "mix deps.get", "mix format", "cp a_test.go b_test.go"),
    ],
)
def test_command_does_not_verify(command: str) -> None:
    """Reading, searching, installing and serving do not verify anything."""
    (step,) = steps_of(command)
    assert not verifies(step)


@pytest.mark.parametrize(
    ("command", "output", "line", "failed"),
    [
        ("pytest", "..F\n=== 1 failed, 41 passed in 0.31s ===", "1 failed, 41 passed in 0.31s", True),
        ("pytest", "....\n41 passed, 2 warnings in 1.2s", "41 passed, 2 warnings in 1.2s", False),
        ("python -m unittest", "...\nRan 5 tests in 0.010s\n\nOK", "OK, Ran 5 tests in 0.010s", False),
        (
            "python -m unittest",
            "F\nRan 5 tests in 0.010s\n\nFAILED (failures=1)",
            "FAILED (failures=1), Ran 5 tests in 0.010s",
            True,
        ),
        (
            "cargo test",
            "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored",
            "test result: ok. 2 passed; 0 failed; 0 ignored",
            False,
        ),
        (
            "cargo test",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            True,
        ),
        (
            "cargo build",
            "error[E0425]: cannot find value `x`\nerror: could not compile `pump` due to 1 previous error",
            "error: could not compile `pump` due to 1 previous error",
            True,
        ),
        ("go test ./...", "ok  \texample.org/pump\t0.012s", "ok example.org/pump 0.012s", False),
        (
            "go test ./...",
            "--- FAIL: TestStop (0.00s)\n    pump_test.go:7: want 3\nFAIL\texample.org/pump\t0.01s",
            "FAIL example.org/pump 0.01s",
            True,
        ),
        (
            "npx vitest run",
            " Test Files  1 passed (1)\n      Tests  7 passed (7)\n   Duration  300ms",
            "Tests 7 passed (7)",
            False,
        ),
        (
            "npx jest",
            "Tests:       1 failed, 5 passed, 6 total\nSnapshots:   0 total\nTime: 2 s",
            "Tests: 1 failed, 5 passed, 6 total",
            True,
        ),
        ("mix test", "....\nFinished in 0.2 seconds\n87 tests, 0 failures", "87 tests, 0 failures", False),
        (
            "mix credo --strict",
            "Analysis took 0.4 seconds\n885 mods/funs, found 5 software design suggestions.",
            "885 mods/funs, found 5 software design suggestions.",
            True,
        ),
        (
            "mix credo",
            "Analysis took 0.4 seconds\n885 mods/funs, found no issues.",
            "885 mods/funs, found no issues.",
            False,
        ),
        ("rspec", "12 examples, 0 failures", "12 examples, 0 failures", False),
        ("./gradlew test", "> Task :test\nBUILD SUCCESSFUL in 3s\n2 actionable tasks", "BUILD SUCCESSFUL in 3s", False),
        (
            "mvn test",
            "[INFO] Tests run: 4, Failures: 1, Errors: 0, Skipped: 0\n[INFO] BUILD FAILURE",
            "Tests run: 4, Failures: 1, Errors: 0, Skipped: 0",
            True,
        ),
        (
            "dotnet test",
            "Passed!  - Failed:     0, Passed:     5, Skipped:     0, Total:     5",
            "Passed! - Failed: 0, Passed: 5, Skipped: 0, Total: 5",
            False,
        ),
        ("ctest", "100% tests passed, 0 tests failed out of 3", "100% tests passed, 0 tests failed out of 3", False),
        (
            "mypy src",
            "src/a.py:3: error: bad\nFound 1 error in 1 file (checked 5 source files)",
            "Found 1 error in 1 file (checked 5 source files)",
            True,
        ),
        ("mypy src", "Success: no issues found in 5 source files", "Success: no issues found in 5 source files", False),
        ("ruff check .", "All checks passed!", "All checks passed!", False),
        (
            "npx eslint .",
            "/srv/a.js\n  1:1  error  bad\n\n✖ 3 problems (2 errors, 1 warning)",
            "3 problems (2 errors, 1 warning)",
            True,
        ),
        (
            "npx tsc --noEmit",
            "src/a.ts(3,5): error TS2304: Cannot find name 'x'.",
            "src/a.ts(3,5): error TS2304: Cannot find name 'x'.",
            True,
        ),
        ("npx tsc --noEmit", "", "", False),
        ("make", "make: *** [all] Error 2", "make: *** [all] Error 2", True),
        ("phpunit", "OK (5 tests, 10 assertions)", "OK (5 tests, 10 assertions)", False),
        ("npx mocha", "  12 passing (30ms)\n  1 failing", "1 failing", True),
    ],
)
def test_result_line_states_the_outcome(command: str, output: str, line: str, failed: bool) -> None:
    """The line is found by its shape. It decides about failure, because a pipe hides the exit code."""
    assert verdicts(steps_of(f"{command} 2>&1 | tail -20"), output, failed=False)[0] == Verdict(line, failed)


def test_chained_commands_have_their_own_results() -> None:
    """Result lines belong to the commands in order. A chain ends at the command that failed."""
    steps = steps_of("ruff check . && mypy src && pytest -q")
    passed = "All checks passed!\nSuccess: no issues found in 5 source files\n3 passed in 0.1s"
    assert [verdict.line for verdict in verdicts(steps, passed, failed=False).values()] == passed.split("\n")
    stopped = verdicts(steps, "All checks passed!\nFound 2 errors in 1 file (checked 5 source files)", failed=True)
    assert {place: verdict.failed for place, verdict in stopped.items()} == {0: False, 1: True}


def test_failed_tests_in_a_chain_belong_to_the_command_that_tests() -> None:
    """A compiler that prints nothing stands before the tests."""
    output = "Test Files  1 failed | 2 passed (3)\n     Tests  1 failed | 9 passed (10)"
    found = verdicts(steps_of("npx tsc -p . && npx vitest run"), output, failed=True)
    assert found == {0: Verdict("", False), 1: Verdict("Tests 1 failed | 9 passed (10)", True)}


def test_filter_that_finds_nothing_is_no_failure() -> None:
    """A search for findings exits with 1 if there are none."""
    assert (
        verdicts(steps_of("npx tsc --noEmit | grep error"), "Command exited with code 1", failed=True)[0].failed
        is False
    )


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "Exit code 128\nfatal: The current branch x has no upstream branch.\nhint",
            "fatal: The current branch x has no upstream branch.",
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: bad pump',
            "ValueError: bad pump",
        ),
        (
            "** (RuntimeError) environment variable SECRET_KEY_BASE is missing",
            "** (RuntimeError) environment variable SECRET_KEY_BASE is missing",
        ),
        ("<tool_use_error>File has not been read yet.</tool_use_error>", "File has not been read yet."),
        ("Could not find the exact text in a.ts.", "Could not find the exact text in a.ts."),
        ("sh: 1: mixx: not found", "sh: 1: mixx: not found"),
        ("", "no output"),
    ],
)
def test_failure_is_stated_in_its_own_words(output: str, line: str) -> None:
    """Exit codes, stack frames and wrappers of tools are left out."""
    assert failure_line(output) == line


@pytest.mark.parametrize(
    ("line", "output", "reason"),
    [
        ("1 failed in 1s", ">       assert f(1) == 3\nE       assert 2 == 3\n\n1 failed in 1s", "assert 2 == 3"),
        ("1 failed in 1s", "    load()\nE       KeyError: 'pump'\n1 failed in 1s", "KeyError: 'pump'"),
        ("1 failed in 1s", "FAILED tests/a.py::test_b - ValueError: bad pump\n1 failed in 1s", "ValueError: bad pump"),
        ("3 tests, 1 failure", "  ** (RuntimeError) no key\n3 tests, 1 failure", "** (RuntimeError) no key"),
        (
            "1 failed",
            "AssertionError: expected 3 to be 4\n at a.ts:3:1\n1 failed",
            "AssertionError: expected 3 to be 4",
        ),
        ("1 error", "a.rs:3:1: error[E0308]: mismatched types\n1 error", "a.rs:3:1: error[E0308]: mismatched types"),
        ("1 failed in 1s", "collected 3 items\n1 failed in 1s", ""),
        ("a.py:1: E501 Line too long", "Error: other\na.py:1: E501 Line too long", ""),
    ],
)
def test_failed_count_is_followed_by_the_reason(line: str, output: str, reason: str) -> None:
    """The reason is in the words of the output. A result that states a reason stays as it is."""
    assert with_reason(line, output) == (f"{line}: {reason}" if reason else line)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("mix dialyzer", "mix dialyzer --format short", True),
        ("pytest -q", "pytest", True),
        ("pytest", "pytest -k pump", False),
        ("mix test a.exs", "mix test", False),
        ("cargo test", "cargo test -p core", False),
    ],
)
def test_options_that_select_a_part_make_another_check(first: str, second: str, same: bool) -> None:
    """Options for the output do not."""
    assert (check_key(first) == check_key(second)) is same


@given(st.text(max_size=200), st.booleans())
def test_any_output_has_a_verdict(output: str, failed: bool) -> None:
    """No output raises an error."""
    assert verdicts(steps_of("make && make test; ls | tail"), output, failed=failed) is not None
    assert failure_line(output)
