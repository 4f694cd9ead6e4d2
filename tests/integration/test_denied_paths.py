"""Commands that try to read denied files, credentials and the folders of orch."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from orch_protocol.policy.policy import PolicyCall, PolicyConfig
from orch_protocol.policy.sandbox import Level, SandboxSpec, ToolLimits
from orch_worker.policy.evaluate import policy
from orch_worker.sandbox import launcher_client, probe
from orch_worker.sandbox.launcher import Cover
from orch_worker.tools.api.base import Tool, ToolContext, ToolError, ToolOutput
from orch_worker.tools.python.python import py_help, run_python_script
from orch_worker.tools.shell.sandboxed_exec import CommandSandbox
from orch_worker.tools.shell.shell import bash, bg_kill, bg_status

LEVELS: tuple[Level, ...] = ("L0", "L1", "L2")
SECRET = "BEGIN-DENIED"

COMMANDS = (
    # By name, spelled in many ways.
    "cat token.key",
    "cat \"token\"'.key'",
    "cat t?k*.k[e]y",
    "cat *",
    "cat ./sub/../token.key",
    "f=token; cat $f.key",
    "cat $(printf '%s' token.ke)y",
    "cat $(echo yek.nekot | rev)",
    "cat $(echo dG9rZW4ua2V5 | base64 -d)",
    "cat $'\\x74oken.key'",
    "eval 'cat to''ken.key'",
    'while read -r name; do cat "$name"; done < <(ls)',
    "n=token.key_; cat ${{n%_}}",
    # By programs that look for files themselves.
    "grep -rh DENIED .",
    "grep -r '' {vault}",
    "find . -name 't*y' -exec cat {{}} ;",
    "find {work} -type f -print0 | xargs -0 cat",
    "tar cf - . | tar xOf -",
    "tar cf - -C {vault} . | tar xOf -",
    "ls | xargs -n1 cat",
    "awk 1 sub/*",
    "sed -n p < token.key",
    "head -c 100 token.key",
    "dd if=token.key status=none",
    "od -c token.key | tr -d ' \\n'; cat token.key",
    "diff /dev/null token.key",
    "sort {vault}/inner",
    "paste token.key",
    "base64 token.key | base64 -d",
    "git grep --no-index -h DENIED",
    "git diff --no-index /dev/null token.key",
    # By links.
    "cat link/inner",
    "cat named.key",
    # By /proc, and by files that other processes have open.
    "cat /proc/self/cwd/token.key",
    "cat /proc/self/root{vault}/inner",
    "cat /proc/[0-9]*/root{vault}/inner /proc/[0-9]*/cwd/token.key",
    "cat /proc/[0-9]*/fd/*/token.key",
    "nsenter -t $PPID -m -U cat {vault}/inner",
    "nsenter -t 1 -m cat {vault}/inner",
    "cat /dev/fd/3 3< token.key",
    # By interpreters.
    "python3 -c \"print(open('token' + chr(46) + 'key').read())\"",
    "python3 -c \"import os; os.setsid(); os.fork() or os.execvp('cat', ['cat', '{vault}/inner'])\"",
    "perl -pe 1 token.key",
    "setsid nohup cat token.key",
    "env -i /bin/cat token.key",
    "(sleep 0; cat token.key) & wait",
    # Credentials.
    "cat ~/.ssh/id_test",
    "cat $HOME/.s*/*",
    "cd; cat .ssh/id_test",
    "tar cf - -C {home} .ssh | tar xOf -",
    "python3 -c \"import pathlib; print((pathlib.Path.home() / '.kube' / 'config').read_text())\"",
)
"""Commands that only read."""

CHANGES = (
    "cp -r . copy && cat copy/token.key",
    "git hash-object -w token.key | xargs git cat-file blob",
    "git add -f token.key; git show :token.key",
    "ln token.key hard; cat hard",
    "ln -s token.key soft; cat soft",
    "mv token.key moved; cat moved",
    "mv sub other; cat other/deep.key",
    "rm -f token.key; cat token.key",
    "chmod 644 token.key; cat token.key",
    "chmod -R 777 {vault}; cat {vault}/inner",
    "umount token.key; cat token.key",
    "umount -l {vault}; cat {vault}/inner",
    "mount --bind . sub; cat sub/token.key",
    "mount -t tmpfs none . ; cat token.key",
    "unshare -Urm sh -c 'umount -l {vault}; cat {vault}/inner token.key'",
    "unshare -Um sh -c 'umount -l {vault}; cat {vault}/inner token.key'",
    "unshare -Urm sh -c 'mount --rbind . sub; umount -l sub/token.key; cat sub/token.key'",
    "python3 -c \"import ctypes; ctypes.CDLL(None).umount2(b'{vault}', 2); print(open('{vault}/inner').read())\"",
)
"""Commands that change, link, move or mount files."""


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ToolContext]:
    """An agent next to a denied folder, with denied files, credentials, and a session in an orch home."""
    if why := launcher_client.unavailable_reason():
        pytest.skip(why)
    names = (
        "cwd/sub",
        "vault",
        "user/.ssh",
        "user/.kube",
        "orch/sessions/me",
        "orch/sessions/other",
        "orch/skills/sql",
    )
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    secrets = ("cwd/token.key", "cwd/sub/deep.key", "vault/inner", "user/.ssh/id_test", "user/.kube/config")
    orchs = ("orch/config.toml", "orch/permissions.json", "orch/sessions/other/transcript.jsonl", "orch/run.sock.token")
    for name in (*secrets, *orchs, "orch/sessions/me/transcript.jsonl"):
        (tmp_path / name).write_text(f"{SECRET} {name}\n")
    (tmp_path / "orch/skills/sql/query.sh").write_text("echo a skill\n")
    (tmp_path / "cwd/link").symlink_to(tmp_path / "vault")
    (tmp_path / "cwd/named.key").symlink_to(tmp_path / "vault/inner")
    subprocess.run(["git", "init", "-q", tmp_path / "cwd"], check=True)
    context = ToolContext(
        tmp_path / "cwd",
        env={"CENSUS": os.environ["CENSUS"], "HOME": str(tmp_path / "user")},
        folder=tmp_path / "orch/sessions/me",
        seconds=30.0,
        sandbox=SandboxSpec(covers_paths=True, read=(str(tmp_path / "orch/skills/sql"),)),
        policy=PolicyConfig(denied_paths=("*.key", str(tmp_path / "vault"))),
        orch_folders=(str(tmp_path / "orch"),),
    )
    yield context
    context.tool_state.close()


def at(context: ToolContext, level: Level) -> ToolContext:
    """Return `context` with its tools at `level`. Skip the test if the machine does not support `level`."""
    if why := probe.available_levels().missing.get(level):
        pytest.skip(f"no {level} on this machine: {why}")
    return replace(context, sandbox=replace(context.sandbox, level=level))


async def sh(context: ToolContext, command: str, **more: object) -> ToolOutput:
    return await bash.run(context, {"command": command, **more})


def launcher_pid(context: ToolContext) -> int:
    """Return the process id of the agent's one launcher."""
    [pid] = context.agent_object(CommandSandbox).launchers
    return pid


async def test_no_command_prints_a_denied_file(context: ToolContext) -> None:
    """The mounts alone hide the files, because no rule checks the command."""
    top = context.cwd.parent
    for command in COMMANDS:
        output = await sh(context, command.format(work=top, vault=top / "vault", home=top / "user"))
        assert SECRET not in output.text, command


@pytest.mark.parametrize("command", CHANGES)
async def test_no_changing_command_prints_a_denied_file(context: ToolContext, command: str) -> None:
    """The mounts also hide the files from commands that move, replace or uncover them."""
    top = context.cwd.parent
    output = await sh(context, command.format(work=top, vault=top / "vault", home=top / "user"))
    assert SECRET not in output.text


async def test_each_file_is_readable_without_the_mounts(context: ToolContext) -> None:
    """Without the mounts a command prints each secret, so the test above can fail."""
    bare = replace(context, sandbox=SandboxSpec(covers_paths=False))
    text = (await sh(bare, "cat token.key link/inner named.key ~/.ssh/* ~/.kube/* ../orch/config.toml")).text
    assert text.count(SECRET) == 6


FILES = ("prod.key", "conf/prod.key", "conf/deep/prod.key", "secret/x", "secret/deep/y", "conf/secret/z")


@pytest.mark.parametrize(
    ("rule", "denied"),
    [
        ("*.key", FILES[:3]),
        ("**/*.key", FILES[:3]),
        ("conf/*.key", ["conf/prod.key"]),
        ("conf/**", ["conf/prod.key", "conf/deep/prod.key", "conf/secret/z"]),
        ("conf/**/prod.key", ["conf/prod.key", "conf/deep/prod.key"]),
        ("**/secret", ["secret/x", "secret/deep/y", "conf/secret/z"]),
        ("**/secret/**", ["secret/x", "secret/deep/y", "conf/secret/z"]),
    ],
)
async def test_rules_and_mounts_deny_the_same_files(context: ToolContext, rule: str, denied: Sequence[str]) -> None:
    """The rules judge a call that names the file, and the mounts hide the file from a command that does not."""
    config = PolicyConfig(denied_paths=(rule,))
    folder = context.cwd / "rules"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{SECRET} {name}\n")
    by_rule = {
        name
        for name in FILES
        if policy(PolicyCall("read_file", {"path": name}, folder=str(folder)), config).approval == "deny"
    }
    context = replace(context, cwd=folder, policy=config)
    text = (await sh(context, "find . -type f -exec cat {} +")).text
    hidden = {name for name in FILES if f"{SECRET} {name}\n" not in text}
    assert by_rule == hidden == set(denied)


@pytest.mark.parametrize("level", LEVELS)
async def test_denied_files_are_hidden_at_every_sandbox_level(context: ToolContext, level: Level) -> None:
    """At each level, denied files are hidden and new files can be written and read."""
    context = at(context, level)
    assert SECRET not in (await sh(context, "cat token.key sub/deep.key link/* ~/.ssh/*")).text
    assert (await sh(context, "echo fine > new.txt && cat new.txt")).text.startswith("fine\n")


@pytest.mark.parametrize("level", LEVELS)
async def test_command_has_no_capability(context: ToolContext, level: Level) -> None:
    """A command also cannot gain a capability, with which it could remove the mounts."""
    lines = (await sh(at(context, level), "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")).text.splitlines()
    assert {line.split()[1] for line in lines if line.startswith("Cap")} == {"0" * 16}
    assert "NoNewPrivs:\t1" in lines


async def test_scripts_and_background_jobs_cannot_read_denied_files(context: ToolContext) -> None:
    """A script gets a PermissionError, and the output of a background job does not contain the secret."""
    text = (await run_python_script.run(context, {"code": "print(open('token.key').read())"})).text
    assert "PermissionError" in text
    assert SECRET not in text
    await sh(context, "cat token.key link/inner; echo done", background=True)
    text = (await bg_status.run(context, {"id": "job_1", "wait": 20})).text
    assert "done" in text
    assert SECRET not in text
    await bg_kill.run(context, {"id": "job_1"})


ORCH_COMMANDS = (
    "echo '[policy.permissions]' >> {orch}/config.toml",
    "echo x > {orch}/permissions.json",
    "rm -rf {orch}/config.toml {orch}/sessions",
    "mv {orch} {orch}.old",
    "mkdir -p {orch}/extensions/mine",
    "cat {orch}/config.toml",
    "cat {orch}/run.sock.token",
    "cat {orch}/sessions/other/transcript.jsonl",
    "cat {orch}/sessions/me/transcript.jsonl",
    "echo x >> {orch}/sessions/me/transcript.jsonl",
    "ls {orch}",
    "ls {orch}/sessions/other",
    "echo x > {orch}/skills/sql/query.sh",
)
"""Commands that read or change files of orch."""


@pytest.mark.parametrize("level", LEVELS)
async def test_orch_folders_are_hidden(context: ToolContext, level: Level) -> None:
    """Commands can neither read nor change the folders."""
    orch = context.cwd.parent / "orch"
    context = at(context, level)
    before = {path: path.read_bytes() for path in sorted(orch.rglob("*")) if path.is_file()}
    for command in ORCH_COMMANDS:
        output = await sh(context, command.format(orch=shlex.quote(str(orch))))
        assert output.is_error, command
        assert SECRET not in output.text, command
        assert {path: path.read_bytes() for path in sorted(orch.rglob("*")) if path.is_file()} == before, command
        assert not (orch / "extensions").exists(), command


@pytest.mark.parametrize("level", LEVELS)
async def test_scratch_folder_and_skills_stay_visible(context: ToolContext, level: Level) -> None:
    """A command can write the scratch folder of its agent and read the skills."""
    orch = context.cwd.parent / "orch"
    output = await sh(
        at(context, level), f"echo kept > {orch}/sessions/me/scratch/file && sh {orch}/skills/sql/query.sh"
    )
    assert output.text == "a skill\n[exit status 0]"
    assert (orch / "sessions/me/scratch/file").read_text() == "kept\n"


@pytest.mark.parametrize("level", LEVELS)
async def test_writable_folder_in_a_readable_folder_is_writable(context: ToolContext, level: Level) -> None:
    """A command can write the folder that `sandbox.write` lists, and only read the folder that contains it."""
    top = context.cwd.parent / "orch/data"
    (top / "out").mkdir(parents=True)
    sandbox = replace(context.sandbox, read=(str(top),), write=(str(top / "out"),))
    output = await sh(
        at(replace(context, sandbox=sandbox), level), f"echo x > {top}/out/file && ls {top} && echo x > {top}/file"
    )
    assert output.is_error
    assert output.text.startswith("out\n")
    assert [path.name for path in sorted(top.rglob("*"))] == ["out", "file"]


def test_link_that_replaces_a_writable_folder_does_not_make_its_target_writable(
    context: ToolContext, tmp_path: Path
) -> None:
    """If a link is at the path of a writable folder, the readable folder to which the link leads stays read-only."""
    orch, skills = tmp_path / "orch", tmp_path / "orch/skills"
    (orch / "data").mkdir()
    (skills / "out").symlink_to(orch / "data")
    cover = Cover(str(orch), writable=(str(skills / "out"),), readable=(str(orch / "data"), str(skills)))
    launcher = launcher_client.CommandLauncher([cover], context.cwd)
    with (tmp_path / "output").open("wb") as output:
        launcher.start(["sh", "-c", f"ls {skills}; echo x > {orch}/data/x"], tmp_path, {}, output.fileno()).wait()
    launcher.close()
    assert ("sql" in (tmp_path / "output").read_text(), list((orch / "data").iterdir())) == (True, [])


async def test_file_created_later_is_hidden_from_the_next_command(context: ToolContext) -> None:
    """A file that replaces a hidden file is hidden, too."""
    await sh(context, "true")
    (context.cwd / "late.key").write_text(SECRET)
    assert SECRET not in (await sh(context, "cat late.key")).text
    (context.cwd / "new").write_text(SECRET)
    (context.cwd / "new").replace(context.cwd / "token.key")
    assert SECRET not in (await sh(context, "cat token.key")).text


@pytest.mark.parametrize(
    ("rename", "look", "level"),
    [
        ("mv sub s2", "cat s2/*", "L0"),
        ("mv sub s2", "cat s2/*", "L1"),
        ("mv sub s2", "cat s2/*", "L2"),
        ("mv sub ../s2", "cat ../s2/*", "L0"),
        ("cd ../user && mv .kube k2", "cat ../user/k2/*", "L0"),
        ("cd .. && mv user u2", "cat ../u2/.ssh/* ../u2/.kube/*", "L0"),
        ("cd ../.. && mv {top} moved; mkdir -p {top}/cwd", "cat {parent}/moved/orch/config.toml", "L0"),
        ("python3 -c \"import os; os.rename('../user/.kube', 'kube')\"", "cat kube/config", "L0"),
    ],
)
async def test_folder_above_a_hidden_path_cannot_be_renamed(
    context: ToolContext, level: Level, rename: str, look: str
) -> None:
    """Otherwise, the next command could read the file by a name that is not hidden."""
    top = context.cwd.parent
    policy = PolicyConfig(denied_paths=(str(context.cwd / "sub/deep.key"),))
    context = replace(at(context, level), policy=policy)
    names = {"top": top.name, "parent": top.parent}
    before = sorted(map(str, top.parent.rglob("*")))
    await sh(context, rename.format(**names))
    assert SECRET not in (await sh(context, look.format(**names))).text
    assert (top / "cwd/sub/deep.key").exists()
    assert (top / "user/.kube/config").exists()
    assert (top / "orch/config.toml").exists()
    assert set(before) <= set(map(str, top.parent.rglob("*")))


RENAME_ABOVE_A_MOUNT = """
import os, sys
from orch_worker.sandbox import launcher
os.chdir(sys.argv[1])
launcher._enter_namespaces()
launcher._mount("none", "/", None, launcher.MS_REC | launcher.MS_SLAVE)
launcher._mount("tmpfs", "above/mounted", "tmpfs", 0)
with open("above/mounted/key", "w") as file:
    file.write("secret")
launcher.hide([launcher.Cover(os.path.abspath("above/mounted/key"))], os.path.abspath("staging"))
try:
    os.rename("above", "renamed")
except OSError as error:
    print(error.strerror)
"""


def test_folder_above_a_mounted_file_system_cannot_be_renamed(tmp_path: Path) -> None:
    """The hidden file is in the mounted file system."""
    if why := launcher_client.unavailable_reason():
        pytest.skip(why)
    (tmp_path / "above/mounted").mkdir(parents=True)
    (tmp_path / "staging").mkdir()
    command = [sys.executable, "-c", RENAME_ABOVE_A_MOUNT, os.path.realpath(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "Device or resource busy\n"


async def test_other_files_in_a_folder_with_hidden_files_can_be_renamed(context: ToolContext) -> None:
    """Renames work within the folder. Between folders, `mv` copies."""
    output = await sh(context, "echo text > sub/a && mv sub/a sub/b && mv sub/b c && mkdir d && mv c d/e && cat d/e")
    assert output.text == "text\n[exit status 0]"


async def test_commands_share_one_launcher(context: ToolContext) -> None:
    """The launcher process is used for several commands, and ends with the agent."""
    await sh(context, "true")
    pid = launcher_pid(context)
    await sh(context, "cat token.key")
    assert launcher_pid(context) == pid
    context.tool_state.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_killed_launcher_is_replaced_with_hiding(context: ToolContext) -> None:
    """The command after the kill uses a new launcher, which also hides the denied files."""
    await sh(context, "true")
    pid = launcher_pid(context)
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([ended], [], [], 30)[0]
    os.close(ended)
    assert SECRET not in (await sh(context, "cat token.key")).text
    assert launcher_pid(context) != pid


async def test_missing_namespaces_stop_the_command(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ToolError gives the reason, and the command does not run without hiding."""
    monkeypatch.setattr("orch_worker.sandbox.launcher_client.BOOT_CODE", "raise SystemExit")
    with pytest.raises(ToolError, match="Nothing was run: denied paths cannot be hidden from commands"):
        await sh(context, "touch ran")
    assert not (context.cwd / "ran").exists()


async def test_failed_start_is_an_error(context: ToolContext) -> None:
    """The ToolError gives the reason, and the launcher starts the next command."""
    with pytest.raises(ToolError, match="No such file or directory"):
        await sh(replace(context, cwd=context.cwd / "gone"), "true")
    assert (await sh(context, "echo on")).text.startswith("on\n")


async def test_launcher_preserves_exit_codes_signals_and_limits(context: ToolContext) -> None:
    """The result has the exit status or the signal of the command, and limits apply to the command."""
    assert (await sh(context, "exit 7")).text.splitlines()[0] == "[exit status 7]"
    assert "signal SIGTERM" in (await sh(context, "kill -TERM $$")).text
    limited = replace(context, sandbox=replace(context.sandbox, limits=ToolLimits(open_files=33)))
    limited.tool_state.close()
    assert (await sh(limited, "ulimit -n")).text.startswith("33\n")


async def test_only_the_named_credentials_are_readable(context: ToolContext) -> None:
    """The argument `credentials` alone shows nothing. Denied paths and the orch home stay hidden in any case."""
    command = "cat ~/.ssh/id_test ~/.kube/config token.key ../orch/config.toml"
    assert SECRET not in (await sh(context, command, credentials=True)).text
    named = replace(context, credentials=(str(context.cwd.parent / "user/.ssh"),))
    for background in (False, True):
        output = await sh(named, command, background=background)
        text = (await bg_status.run(named, {"id": "job_1", "wait": 20})).text if background else output.text
        assert f"{SECRET} user/.ssh/id_test" in text
        assert text.count(SECRET) == 1
    assert SECRET not in (await sh(context, command)).text
    usable = replace(context, policy=replace(context.policy, usable_credentials=("~/.ssh",)))
    usable.tool_state.close()
    text = (await sh(usable, "cat ~/.ssh/id_test ~/.kube/config")).text
    assert text.count(SECRET) == 1


async def test_failed_command_lists_hidden_paths(context: ToolContext) -> None:
    """The result of a failed command ends with one line that names the paths. Other results have no such line."""
    *_, line = (await sh(context, "false")).text.splitlines()
    assert line.startswith("[not readable by commands: credentials: ")
    for name in (".ssh", ".kube/config", "credentials=true", "token.key", "vault"):
        assert name in line
    assert "[not readable" not in (await sh(context, "true")).text


@pytest.mark.parametrize(
    ("tool", "input"),
    [(bash, {"command": "touch ran"}), (run_python_script, {"code": "open('ran', 'w')"}), (py_help, {"topic": "os"})],
)
async def test_too_many_denied_files_refuse_commands(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch, tool: Tool, input: dict[str, str]
) -> None:
    """No command runs, because files that a command creates could otherwise take the place of others."""
    monkeypatch.setattr("orch_worker.policy.denied_files.MAX_MOUNTS", 4)
    await sh(context, "touch 1.key 2.key")
    with pytest.raises(ToolError, match=r"Nothing was run: .* 5 paths are denied, of which at most 4 can be hidden"):
        await tool.run(context, input)
    assert not (context.cwd / "ran").exists()
    (context.cwd / "1.key").unlink()
    assert not (await tool.run(context, input)).is_error


@pytest.mark.parametrize("level", LEVELS)
async def test_folder_that_a_command_closed_stays_hidden(context: ToolContext, level: Level) -> None:
    """A search cannot list this folder, and the next command could open the folder again."""
    context = at(context, level)
    for mode in ("000", "444", "111"):
        await sh(context, f"chmod {mode} sub")
        output = await sh(context, "chmod 755 sub; cat sub/*; cd sub && cat deep.key")
        assert SECRET not in output.text, mode


@pytest.mark.parametrize("level", LEVELS)
async def test_file_in_a_folder_with_the_name_of_installed_packages_is_hidden(
    context: ToolContext, level: Level
) -> None:
    """A command can create such a folder, and a link to it where the user later saves a file."""
    context = at(context, level)
    await sh(context, "mkdir node_modules && ln -s node_modules conf")
    (context.cwd / "conf/late.key").write_text(SECRET)
    assert SECRET not in (await sh(context, "rm conf; cat node_modules/*; true")).text
    assert SECRET not in (await sh(context, "cat node_modules/*; find . -type f -exec cat {} +")).text


@pytest.mark.parametrize("level", ["L0", "L2"])
async def test_replaced_file_is_hidden_although_other_files_stay_the_same(context: ToolContext, level: Level) -> None:
    """The kernel removes the cover of a replaced file. The launcher notices this even if the inode number is reused."""
    context = at(context, level)
    for _ in range(5):
        await sh(context, "true")
        (context.cwd / "token.key").unlink()
        (context.cwd / "token.key").write_text(SECRET)
        assert SECRET not in (await sh(context, "cat token.key")).text


def test_launcher_refuses_a_command_after_a_hidden_path_was_replaced(context: ToolContext, tmp_path: Path) -> None:
    """The error is ESTALE, for replaced, deleted and created paths."""
    secret, gone = tmp_path / "vault/inner", tmp_path / "vault/gone"
    for change in (
        lambda: (tmp_path / "cwd/token.key").rename(secret),
        secret.unlink,
        lambda: gone.write_text("x"),
    ):
        launcher = launcher_client.CommandLauncher([Cover(str(secret)), Cover(str(gone))], context.cwd)
        with (tmp_path / "output").open("wb") as output:
            launcher.start(["true"], tmp_path, {}, output.fileno()).wait()
            change()
            with pytest.raises(OSError, match="a hidden path was replaced"):
                launcher.start(["true"], tmp_path, {}, output.fileno())
        launcher.close()
