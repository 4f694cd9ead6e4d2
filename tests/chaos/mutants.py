"""Breaks the product on purpose, one place after the other, and sees that a test finds it out: `mutants.py [NAME...]`.

Each mutant leaves out, or turns round, one thing that the protocol between files and processes stands on. It is made in
a copy of the tree; the test that is named for it must fail there, and pass where nothing is broken.
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
"""How pytest ends when a test failed; it may die of it, too. Other numbers say that it could not be run."""


class Mutant(NamedTuple):
    """`was`, which stands once in `file`, becomes `now`; `test` must fail then."""

    name: str
    file: str
    was: str
    now: str
    test: str


STORE, WIRE = "worker/orch_worker/session/log/append_log.py", "protocol/orch_protocol/wire/frames.py"
TREE, ROUTER = "orchestrator/orch/tree/tree.py", "orchestrator/orch/processes/router.py"
HTTP, ASKING = "worker/orch_worker/tools/web/http.py", "orchestrator/orch/services/agents/query.py"
REPOSITORY = "worker/orch_worker/tools/shell/git_repository.py"
POWER = "tests/orchestrator/archival/test_power_loss.py::test_what_was_told_of_is_there"

MUTANTS: Final = (
    Mutant(
        "a torn tail is not cut off",
        STORE,
        "                os.ftruncate(descriptor, loaded.end)\n",
        "",
        "tests/worker/session/log/test_append_log.py::test_cut_at_every_byte",
    ),
    Mutant(
        "a torn tail is not kept",
        STORE,
        "aside=keep_aside(path, loaded.torn)",
        "aside=None",
        "tests/worker/session/log/test_append_log.py::test_torn_tails_are_kept_side_by_side",
    ),
    Mutant(
        "what a full disk left of a write stays",
        STORE,
        "            os.ftruncate(self._descriptor, self._state[0])\n",
        "            pass\n",
        "tests/worker/session/log/test_append_log_disk.py::test_full_disk_leaves_nothing_behind",
    ),
    Mutant(
        "a sync that failed is tried again",
        STORE,
        "            raise StoreError(self.fault) from error\n        self._synced",
        "            fault, self.fault = self.fault, ''\n            raise StoreError(fault) from error\n"
        "        self._synced",
        "tests/worker/session/log/test_append_log_disk.py::test_failed_sync_is_final",
    ),
    Mutant(
        "half an append counts",
        STORE,
        "                    if not sealed.more:\n                        for each in waiting:",
        "                    if True:\n                        for each in waiting:",
        POWER,
    ),
    Mutant(
        "a line is not chained to the one before it",
        "worker/orch_worker/session/log/record_format.py",
        "        checksum = crc32(body, checksum)\n        lines",
        "        checksum = crc32(body)\n        lines",
        "tests/worker/session/log/test_append_log.py::test_inserted_and_repeated_lines_are_skipped",
    ),
    Mutant(
        "an archive is told of before it is on the disk",
        "worker/orch_worker/session/transcript.py",
        "            self.append(*entries, sync=True)",
        "            self.append(*entries)",
        POWER,
    ),
    Mutant(
        "memory changes before the file does",
        "worker/orch_worker/session/transcript.py",
        "        self.log.append(*lines, sync=sync or (self._power and any(map(_is_acted_on, stored))))\n"
        "        for entry in stored:\n            self.session.apply(entry)\n",
        "        for entry in stored:\n            self.session.apply(entry)\n"
        "        self.log.append(*lines, sync=sync or (self._power and any(map(_is_acted_on, stored))))\n",
        POWER,
    ),
    Mutant(
        "a folder has two owners",
        "worker/orch_worker/session/log/lock.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        "tests/worker/session/log/test_lock.py::test_second_owner_is_told_who_the_first_is",
    ),
    Mutant(
        "a file is removed before another takes its place",
        "worker/orch_worker/session/log/atomic_rewrite.py",
        "        os.replace(beside, path)\n",
        "        os.unlink(path)\n        os.replace(beside, path)\n",
        "tests/chaos/test_prune_kill.py::test_whole_or_gone_wherever_it_is_killed",
    ),
    Mutant(
        "a repeated frame is delivered again",
        WIRE,
        "            if frame.seq != self._received + 1:",
        "            if frame.seq > self._received + 1:",
        "tests/protocol/wire/test_frames.py::test_a_repeated_frame_is_delivered_once_and_acknowledged_again",
    ),
    Mutant(
        "a gap is passed over",
        WIRE,
        "            if frame.seq != self._received + 1:",
        "            if frame.seq <= self._received:",
        "tests/protocol/wire/test_frames.py::test_frames_after_a_lost_one_wait_for_it",
    ),
    Mutant(
        "another incarnation is believed",
        WIRE,
        "        if frame.incarnation != self.incarnation:",
        "        if False:",
        "tests/protocol/wire/test_frames.py::test_another_incarnations_frame_is_refused",
    ),
    Mutant(
        "a lost frame does not come again",
        "worker/orch_worker/transport/reliable_channel.py",
        "            self._transmit(data)\n        self._resend",
        "            pass\n        self._resend",
        "tests/orchestrator/supervisor/test_faults.py::test_a_conversation_survives_the_loss_of_a_frame",
    ),
    Mutant(
        "an impostor is believed",
        ROUTER,
        "            if sender != peer.pid:",
        "            if False:",
        "tests/orchestrator/processes/test_router.py::test_an_impostor_is_turned_away",
    ),
    Mutant(
        "whoever speaks first needs no token",
        ROUTER,
        "            if not isinstance(body, Hello) or not self._is_it(peer, body):",
        "            if not isinstance(body, Hello):",
        "tests/orchestrator/processes/test_router.py",
    ),
    Mutant(
        "an answer is taken twice",
        "orchestrator/orch/tree/rules/query_results.py",
        "if result.stays and result.taken_by is None and result.asker == asker]",
        "if result.stays and result.asker == asker]",
        "tests/integration/test_cli.py::test_an_answer_is_collected_once",
    ),
    Mutant(
        "a reply on the disk is not looked for",
        "orchestrator/orch/supervisor/supervisor.py",
        "remains, taker = recover_query(node), self",
        "remains, taker = RecoveredQuery(), self",
        "tests/orchestrator/supervisor/test_worker_deaths.py::test_a_reply_on_disk_outlives_its_process",
    ),
    Mutant(
        "a worker hangs on one tie alone: the lifeline is not armed",
        "worker/orch_worker/process/worker_init.py",
        "    linux.arm_lifeline(LIFELINE)\n",
        "",
        "tests/integration/test_worker_exits.py::TestEnd::test_lifeline_alone_is_enough",
    ),
    Mutant(
        "a worker hangs on one tie alone: the chain is not made",
        "worker/orch_worker/system/linux.py",
        "        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        "        pass\n",
        "tests/integration/test_processes.py::TestWorker::test_worker_is_what_it_was_asked_to_be",
    ),
    Mutant(
        "what the dead leave behind falls to nobody",
        "worker/orch_worker/system/linux.py",
        "    prctl(PR_SET_CHILD_SUBREAPER, 1)\n",
        "",
        "tests/integration/test_worker_exits.py::TestOrphans::test_tool_of_a_dead_worker_is_ended",
    ),
    Mutant(
        "one that is killed leaves notes half written",
        "worker/orch_worker/memory/memory_file.py",
        '        beside = self.path.with_name(f"{NAME}.new")\n',
        "        beside = self.path\n",
        "tests/worker/memory/test_memory.py::TestFile::test_one_that_is_killed_leaves_the_file_whole",
    ),
    Mutant(
        "notes are changed by many at once",
        "worker/orch_worker/memory/memory_file.py",
        "                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "                    pass\n",
        "tests/worker/memory/test_memory.py::TestFile::test_many_write_at_once",
    ),
    Mutant(
        "a device is a file",
        "worker/orch_worker/system/files.py",
        "from error\n    if not stat.S_ISREG(os.fstat(descriptor).st_mode):",
        "from error\n    if False:",
        "tests/worker/session/log/test_append_log.py::test_what_is_no_regular_file_is_refused",
    ),
    Mutant(
        "of many exit codes one is told",
        "worker/orch_worker/process/zygote.py",
        "        while self._alive and (dead",
        "        if self._alive and (dead",
        "tests/integration/test_processes.py::TestWorker::test_hundred_quick_deaths_are_all_reported",
    ),
    Mutant(
        "a fact that the disk refused is lost",
        "orchestrator/orch/tree/journal/journal.py",
        "            self._owed = self._owed + [entry for entry in entries if self._is_kept(entry)]",
        "            pass",
        "tests/orchestrator/supervisor/test_faults.py::test_a_full_disk_refuses_requests_and_loses_no_fact",
    ),
    Mutant(
        "agents are launched that there are no descriptors for",
        "orchestrator/orch/processes/descriptors.py",
        "    if used + needed <= limit:",
        "    if True:",
        "tests/integration/test_descriptors.py::test_no_more_agents_are_launched_than_there_are_descriptors_for",
    ),
    Mutant(
        "an agent asks its root for what it was not granted",
        "orchestrator/orch/services/dispatch/call.py",
        "    if service.agents.tools.isdisjoint(spec.active):",
        "    if False:",
        "tests/orchestrator/services/test_services.py::test_a_worker_may_ask_for_what_its_tools_ask_for",
    ),
    Mutant(
        "an agent in plan mode has others do it",
        ASKING,
        "    if asker is not None and asker.spec.plan and not node.spec.plan and not node.is_holder:",
        "    if False:",
        "tests/orchestrator/services/sessions/test_plan_mode.py::TestBelow::test_it_cannot_ask_others_to_do_what_it_may_not",
    ),
    Mutant(
        "a page unpacks to whatever it likes",
        HTTP,
        "        if len(body) > RATIO_FROM and len(body) > MAX_RATIO * unpacked:",
        "        if False:",
        "tests/worker/tools/web/test_web.py::TestBounds::test_bomb",
    ),
    Mutant(
        "an address is looked up a second time",
        HTTP,
        '        place = f"[{address}]" if ":" in address else address\n',
        "        place = host\n",
        "tests/worker/tools/web/test_web.py::TestFetch::test_request_is_for_the_name_at_the_address",
    ),
    Mutant(
        "a file named .git leads to any repository",
        REPOSITORY,
        "    if not (_is_below(common, top) and _is_below(part, top)) and not _names(part, common, top, link):",
        "    if False:",
        "tests/integration/test_tools_git.py::TestElsewhere::test_a_repository_of_another_folder_is_not_read",
    ),
    Mutant(
        "a repository says where its files are",
        "worker/orch_worker/tools/shell/git.py",
        "    return run, {**run.found.env, **await",
        "    return run, {**await",
        "tests/integration/test_tools_git.py::TestElsewhere::test_files_of_another_folder_are_not_shown",
    ),
    Mutant(
        "deadly bytes are read by the one who wants them",
        "worker/orch_worker/tools/values/values.py",
        "            check_reads_safely(*reader, data)",
        "            pass",
        "tests/integration/test_isolated_read.py::test_a_frame_that_lies_about_its_length_ends_no_process",
    ),
    Mutant(
        "who says a great deal holds everybody up",
        "worker/orch_worker/transport/zmq_asyncio.py",
        "            for _ in range(MAX_BATCH):",
        "            for _ in range(10**9):",
        "tests/worker/transport/test_zmq_asyncio.py::test_who_says_a_great_deal_at_once_holds_nobody_up_and_is_heard",
    ),
    Mutant(
        "what comes while something is sent is not heard",
        "worker/orch_worker/transport/zmq_asyncio.py",
        "        if not self._draining and self._wants(self._look()):\n            self._schedule()",
        "        self._look()",
        "tests/worker/transport/test_zmq_asyncio.py::test_what_comes_while_something_is_sent_is_heard",
    ),
)


def copied(folder: Path) -> None:
    """Put a copy of the tree into `folder`."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.sock"))
        else:
            shutil.copy(source, folder / name)


def tested(folder: Path, *tests: str) -> tuple[int, str]:
    """Run tests of the copy; return how that ended, and what it said."""
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
        return FAILED, "it does not end"
    return done.returncode, done.stdout + done.stderr


def escaped(folder: Path, mutant: Mutant) -> str:
    """Make the mutant, and return why it was not found out, "" when it was."""
    path = folder / mutant.file
    source = path.read_text()
    path.write_text(source.replace(mutant.was, mutant.now))
    try:
        code, said = tested(folder, mutant.test)
    finally:
        path.write_text(source)
    return "" if code == FAILED or code < 0 else f"{mutant.test} ended with {code}: {said[-500:]}"


def main() -> int:
    """Try all mutants, or those that are named; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants whose name has one of these in it")
    names = parser.parse_args().names
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    folder, lived = Path(tempfile.mkdtemp(prefix="orch-mutants-")), 0
    try:
        copied(folder)
        code, said = tested(folder, *dict.fromkeys(mutant.test for mutant in chosen))
        if code:
            print(f"where nothing is broken, tests fail: {said[-2000:]}")
            return 1
        for mutant in chosen:
            began = time.monotonic()
            why = escaped(folder, mutant)
            lived += bool(why)
            print(f"{mutant.name}: {why or 'found out'} ({time.monotonic() - began:.0f} s)", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(chosen) - lived} of {len(chosen)} mutants were found out")
    return bool(lived)


if __name__ == "__main__":
    sys.exit(main())
