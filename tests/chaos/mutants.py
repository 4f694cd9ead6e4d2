"""Check that tests detect faults in the code: `mutants.py [NAME...]`.

Each mutant removes or inverts one step that durability, process control or rights depend on. The script changes a copy
of the source tree. The test of the mutant must fail in the changed copy, and pass in the unchanged copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = ("orchestrator", "worker", "protocol", "tests", "pyproject.toml")
SECONDS: Final = 300.0
FAILED: Final = 1
"""Exit code of pytest after a failed test. An exit by a signal also counts as a failure.
Other codes mean that no test ran.
"""


class Mutant(NamedTuple):
    """A fault: replace `original`, which occurs once in `file`, with `mutated`. Then `test` must fail."""

    name: str
    file: str
    original: str
    mutated: str
    test: str


STORE, WIRE = "worker/orch_worker/session/log/append_log.py", "protocol/orch_protocol/wire/frames.py"
TREE, ROUTER = "orchestrator/orch/tree/tree.py", "orchestrator/orch/processes/router.py"
HTTP, PERMISSIONS = "worker/orch_worker/tools/web/http.py", "orchestrator/orch/policy/permissions.py"
REPOSITORY = "worker/orch_worker/tools/shell/git_repository.py"
POWER = "tests/orchestrator/archival/test_power_loss.py::test_acknowledged_data_survives_power_loss"

MUTANTS: Final = (
    Mutant(
        "an incomplete last line is not truncated",
        STORE,
        "                os.ftruncate(descriptor, loaded.end)\n",
        "",
        "tests/worker/session/log/test_append_log.py::test_file_cut_at_any_byte_keeps_whole_appends",
    ),
    Mutant(
        "an incomplete last line is not copied aside",
        STORE,
        "torn_tail_file=keep_aside(path, loaded.torn)",
        "torn_tail_file=None",
        "tests/worker/session/log/test_append_log.py::test_second_torn_tail_does_not_overwrite_the_first_copy",
    ),
    Mutant(
        "a partial write on a full disk is not rolled back",
        STORE,
        "            os.ftruncate(self._descriptor, self._state[0])\n",
        "            pass\n",
        "tests/worker/session/log/test_append_log_disk.py::test_full_disk_rolls_back_the_write",
    ),
    Mutant(
        "a failed fsync is retried",
        STORE,
        "            raise StoreError(self.fault) from error\n        self._synced",
        "            fault, self.fault = self.fault, ''\n            raise StoreError(fault) from error\n"
        "        self._synced",
        "tests/worker/session/log/test_append_log_disk.py::test_failed_sync_is_final",
    ),
    Mutant(
        "an incomplete append is accepted",
        "worker/orch_worker/session/log/log_reader.py",
        "        if line.sealed is not None and not line.sealed.more:\n            yield append, True",
        "        if line.sealed is not None:\n            yield append, True",
        "tests/worker/session/log/test_append_log.py::test_file_cut_at_any_byte_keeps_whole_appends",
    ),
    Mutant(
        "the checksum of a line ignores the previous line",
        "worker/orch_worker/session/log/record_format.py",
        "        checksum = crc32(body, checksum)\n        lines",
        "        checksum = crc32(body)\n        lines",
        "tests/worker/session/log/test_append_log.py::test_inserted_and_repeated_lines_are_skipped",
    ),
    Mutant(
        "an archive is acknowledged before fsync",
        "worker/orch_worker/session/transcript.py",
        "            self.append(*entries, sync=True)",
        "            self.append(*entries)",
        POWER,
    ),
    Mutant(
        "the session changes before the file is written",
        "worker/orch_worker/session/transcript.py",
        "        self.log.append(*lines, sync=sync or (self._power and any(map(_is_acted_on, stored))))\n"
        "        session = self.session\n        for entry in stored:\n            session.apply(entry)\n",
        "        session = self.session\n        for entry in stored:\n            session.apply(entry)\n"
        "        self.log.append(*lines, sync=sync or (self._power and any(map(_is_acted_on, stored))))\n",
        POWER,
    ),
    Mutant(
        "a folder is not locked",
        "worker/orch_worker/session/log/lock.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        "tests/worker/session/log/test_lock.py::test_second_lock_attempt_names_the_owner",
    ),
    Mutant(
        "a file is removed before its replacement is in place",
        "worker/orch_worker/system/atomic_write.py",
        "            os.replace(new, old, src_dir_fd=folder, dst_dir_fd=folder)\n",
        "            os.unlink(old)\n            os.replace(new, old, src_dir_fd=folder, dst_dir_fd=folder)\n",
        "tests/chaos/test_prune_kill.py::test_killed_prune_leaves_whole_or_pruned_files",
    ),
    Mutant(
        "a committed deletion is not finished",
        "orchestrator/orch/api/orchestrator.py",
        "                await finish_pruning(supervisor)\n",
        "",
        "tests/chaos/test_prune_kill.py::test_interrupted_prune_is_undone_or_finished_by_the_next_root",
    ),
    Mutant(
        "a repeated frame is delivered twice",
        WIRE,
        "            if frame.seq != self._received + 1:",
        "            if frame.seq > self._received + 1:",
        "tests/protocol/wire/test_frames.py::test_duplicate_frame_is_delivered_once_and_acknowledged_again",
    ),
    Mutant(
        "a missing frame is ignored",
        WIRE,
        "            if frame.seq != self._received + 1:",
        "            if frame.seq <= self._received:",
        "tests/protocol/wire/test_frames.py::test_frames_behind_a_lost_one_wait_for_it",
    ),
    Mutant(
        "a frame of another incarnation is accepted",
        WIRE,
        "        if frame.incarnation != self.incarnation:",
        "        if False:",
        "tests/protocol/wire/test_frames.py::test_frame_of_another_incarnation_is_refused",
    ),
    Mutant(
        "a lost frame is not sent again",
        "worker/orch_worker/transport/reliable_channel.py",
        "            self._transmit(data)\n        self._resend",
        "            pass\n        self._resend",
        "tests/orchestrator/supervisor/test_faults.py::test_lost_frame_is_resent_and_handled_once",
    ),
    Mutant(
        "the process id of a sender is not checked",
        ROUTER,
        "            if sender != peer.pid:",
        "            if False:",
        "tests/orchestrator/processes/test_router.py::test_worker_with_a_wrong_token_is_rejected_and_counted",
    ),
    Mutant(
        "the token of a worker is not checked",
        ROUTER,
        "            if not isinstance(body, Hello) or not self._is_expected_worker(peer, body):",
        "            if not isinstance(body, Hello):",
        "tests/orchestrator/processes/test_router.py",
    ),
    Mutant(
        "an answer can be collected twice",
        "orchestrator/orch/tree/rules/query_results.py",
        "if result.stays and result.taken_by is None and result.asker == asker]",
        "if result.stays and result.asker == asker]",
        "tests/integration/test_cli.py::test_answer_is_collected_once",
    ),
    Mutant(
        "a reply stored on disk is not recovered",
        "orchestrator/orch/supervisor/supervisor.py",
        "recovered, taker = recover_query(agent), self",
        "recovered, taker = RecoveredQuery(), self",
        "tests/orchestrator/supervisor/test_worker_deaths.py::test_reply_on_disk_outlives_its_process",
    ),
    Mutant(
        "the lifeline of a worker is not armed",
        "worker/orch_worker/process/worker_init.py",
        "    linux.arm_lifeline(LIFELINE)\n",
        "",
        "tests/integration/test_worker_exits.py::TestEnd::test_lifeline_alone_ends_a_worker",
    ),
    Mutant(
        "the death signal of a worker is not set",
        "worker/orch_worker/system/linux.py",
        "        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        "        pass\n",
        "tests/integration/test_processes.py::TestWorker::test_worker_has_its_init_and_is_isolated",
    ),
    Mutant(
        "the shim is no subreaper",
        "worker/orch_worker/system/linux.py",
        "    prctl(PR_SET_CHILD_SUBREAPER, 1)\n",
        "",
        "tests/integration/test_worker_exits.py::TestOrphans::test_detached_tool_of_a_dead_worker_is_ended",
    ),
    Mutant(
        "notes are not replaced atomically",
        "worker/orch_worker/memory/memory_file.py",
        "            with atomic_write(self.path, locked=True) as file:\n",
        '            with open(self.path, "wb") as file:\n',
        "tests/worker/memory/test_memory.py::TestFile::test_kill_during_a_change_keeps_the_previous_notes",
    ),
    Mutant(
        "the notes file is not locked",
        "worker/orch_worker/memory/memory_file.py",
        "                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "                    pass\n",
        "tests/worker/memory/test_memory.py::TestFile::test_concurrent_writers_lose_no_acknowledged_note",
    ),
    Mutant(
        "a device is opened as a regular file",
        "worker/orch_worker/system/files.py",
        "from error\n    if not stat.S_ISREG(os.fstat(descriptor).st_mode):",
        "from error\n    if False:",
        "tests/worker/session/log/test_append_log.py::test_only_regular_files_are_opened",
    ),
    Mutant(
        "exit codes of workers are reported as 0",
        "worker/orch_worker/process/zygote.py",
        "            self._tell(WorkerProcessExited(req, exit_code))",
        "            self._tell(WorkerProcessExited(req, 0))",
        "tests/integration/test_processes.py::TestWorker::test_ends_are_reported_and_outputs_are_logged",
    ),
    Mutant(
        "journal entries are lost on a full disk",
        "orchestrator/orch/tree/journal/journal.py",
        "            self._unwritten = self._unwritten + [entry for entry in entries if self._is_stored(entry)]",
        "            pass",
        "tests/orchestrator/supervisor/test_faults.py::test_full_disk_refuses_requests_and_loses_no_event",
    ),
    Mutant(
        "the limit of file descriptors is ignored",
        "orchestrator/orch/processes/descriptors.py",
        "    if used + needed <= limit:",
        "    if True:",
        "tests/integration/test_descriptors.py::test_launches_are_limited_by_available_descriptors",
    ),
    Mutant(
        "a worker may call services without the tool",
        PERMISSIONS,
        "    if not service.agents.tools.isdisjoint(spec.active):",
        "    if True:",
        "tests/orchestrator/services/test_services.py::test_worker_may_call_only_services_of_its_tools",
    ),
    Mutant(
        "an agent in plan mode may query agents with more rights",
        PERMISSIONS,
        "    if spec.plan and not target.spec.plan:",
        "    if False:",
        "tests/orchestrator/services/sessions/test_plan_mode.py::TestBelow::test_planning_agent_may_query_planning_agents_only",
    ),
    Mutant(
        "the decompression ratio is not limited",
        HTTP,
        "        if len(body) > MIN_RATIO_BYTES and len(body) > MAX_RATIO * bytes_read:",
        "        if False:",
        "tests/worker/tools/web/test_web.py::TestBounds::test_decompression_bomb_is_refused_early",
    ),
    Mutant(
        "a vetted address is resolved again",
        HTTP,
        '        host_part = f"[{address}]" if ":" in address else address\n',
        "        host_part = host\n",
        "tests/worker/tools/web/test_web.py::TestFetch::test_request_goes_to_the_vetted_address_with_the_host_name",
    ),
    Mutant(
        "a .git file may point to any repository",
        REPOSITORY,
        " and not _lists_work_tree(part, common, top, link):",
        " and False:",
        "tests/integration/test_tools_git.py::TestElsewhere::test_foreign_git_directory_is_not_read",
    ),
    Mutant(
        "a configured worktree is not overridden",
        "worker/orch_worker/tools/shell/git.py",
        "    return git_call, {**git_call.found.env, **await",
        "    return run, {**await",
        "tests/integration/test_tools_git.py::TestElsewhere::test_configured_worktree_elsewhere_is_ignored",
    ),
    Mutant(
        "unsafe data is read in the calling process",
        "worker/orch_worker/tools/values/values.py",
        "            check_reads_safely(*reader, data)",
        "            pass",
        "tests/integration/test_isolated_read.py::test_frame_with_a_wrong_length_is_an_error",
    ),
    Mutant(
        "the batch size of the receiver is unlimited",
        "worker/orch_worker/transport/zmq_asyncio.py",
        "            for _ in range(MAX_BATCH):",
        "            for _ in range(10**9):",
        "tests/worker/transport/test_zmq_asyncio.py::test_large_burst_yields_to_other_tasks_and_completes",
    ),
    Mutant(
        "messages that arrive during a send are missed",
        "worker/orch_worker/transport/zmq_asyncio.py",
        "        if not self._draining and self._has_work(self._current_events()):\n            self._schedule()",
        "        self._current_events()",
        "tests/worker/transport/test_zmq_asyncio.py::test_message_arriving_during_a_send_is_received",
    ),
)


def copy_tree(folder: Path) -> None:
    """Copy the source tree to `folder`."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.sock"))
        else:
            shutil.copy(source, folder / name)


def run_tests(folder: Path, *tests: str) -> tuple[int, str]:
    """Run tests of the copy in `folder`; return the exit code and the output of pytest."""
    roots = [str(folder / name) for name in ("orchestrator", "worker", "protocol", "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(roots), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"no end after {SECONDS:.0f} s"
    return done.returncode, done.stdout + done.stderr


def undetected(folder: Path, mutant: Mutant) -> str:
    """Apply the mutant and run its test; return "" if the test failed, otherwise its output."""
    path = folder / mutant.file
    source = path.read_text()
    path.write_text(source.replace(mutant.original, mutant.mutated))
    try:
        code, output = run_tests(folder, mutant.test)
    finally:
        path.write_text(source)
    return "" if code == FAILED or code < 0 else f"{mutant.test} ended with {code}: {output[-500:]}"


def main() -> int:
    """Try all mutants, or the named ones; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="part of the name of a mutant to try (default: all)")
    names = parser.parse_args().names
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    folder, survivors = Path(tempfile.mkdtemp(prefix="orch-mutants-")), 0
    try:
        copy_tree(folder)
        code, output = run_tests(folder, *dict.fromkeys(mutant.test for mutant in chosen))
        if code:
            print(f"tests fail in the unchanged copy: {output[-2000:]}")
            return 1
        for mutant in chosen:
            began = time.monotonic()
            why = undetected(folder, mutant)
            survivors += bool(why)
            print(f"{mutant.name}: {why or 'detected'} ({time.monotonic() - began:.0f} s)", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants were detected")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
