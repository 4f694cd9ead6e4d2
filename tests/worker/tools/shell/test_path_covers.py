"""Paths that are hidden from an agent's commands: denied paths, credentials and folders of orch, with exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxSpec
from orch_worker.sandbox import bubblewrap, own_namespace
from orch_worker.sandbox.launcher import Cover
from orch_worker.tool_host.client import HostChannel, ToolHostClient
from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.python.python import run_python
from orch_worker.tools.shell.path_covers import PathCovers
from orch_worker.tools.shell.sandboxed_exec import covered_starter


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    """The context of an agent whose home contains credentials, next to folders of orch."""
    home = tmp_path / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id_work").write_text("x")
    (home / ".kube").mkdir()
    (home / ".kube/config").write_text("x")
    for folder in ("cwd", "orch/sessions/me/scratch", "orch/sessions/other", "orch/skills/sql"):
        (tmp_path / folder).mkdir(parents=True)
    return ToolContext(
        tmp_path / "cwd",
        env={"HOME": str(home)},
        folder=tmp_path / "orch/sessions/me",
        orch_folders=(str(tmp_path / "orch"), str(tmp_path / "orch/sessions")),
    )


def covers_of(context: ToolContext, credentials: Iterable[str] = ()) -> dict[str, Cover]:
    """Return the covers below the folder of the test, by relative path."""
    assert context.folder is not None
    top = context.folder.parents[2]
    found = PathCovers(context).find([str(top / "user" / name) for name in credentials]).covers
    return {cover.path.removeprefix(f"{top}/"): cover for cover in found if cover.path.startswith(str(top))}


def test_credentials_and_orch_folders_are_hidden(context: ToolContext) -> None:
    """The scratch folder of the agent stays writable inside the hidden folder of orch."""
    covers = covers_of(context)
    assert sorted(covers) == ["orch", "user/.kube/config", "user/.ssh"]
    assert covers["orch"].writable == (str(context.cwd.parent / "orch/sessions/me/scratch"),)
    assert covers["orch"].readable == ()


def test_texts_of_own_archives_stay_readable(context: ToolContext) -> None:
    """The texts of another agent are hidden, and so is a folder behind a link."""
    assert context.folder is not None
    own, other = context.folder / "archives", context.folder.parent / "other/archives"
    other.mkdir()
    own.symlink_to(other)
    assert covers_of(context)["orch"].readable == ()
    own.unlink()
    own.mkdir()
    assert covers_of(context)["orch"].readable == (str(own),)


def test_skills_and_writable_folders_stay_visible_in_the_orch_home(context: ToolContext) -> None:
    """Folders that the sandbox lists for reading stay readable, and folders for writing stay writable."""
    top = context.cwd.parent
    sandbox = SandboxSpec(read=(str(top / "orch/skills/sql"),), write=(str(top / "orch/out"),))
    cover = covers_of(replace(context, sandbox=sandbox))["orch"]
    assert cover.readable == (str(top / "orch/skills/sql"),)
    assert str(top / "orch/out") in cover.writable


def test_agent_that_works_in_the_orch_home_keeps_its_folder(context: ToolContext) -> None:
    """If the working folder is the home of orch itself, only folders below it are hidden."""
    top = context.cwd.parent
    inside = replace(context, cwd=top / "orch/skills")
    assert str(top / "orch/skills") in covers_of(inside)["orch"].writable
    whole = covers_of(replace(context, cwd=top / "orch"))
    assert "orch" not in whole
    assert "orch/sessions" in whole


def test_call_can_read_only_the_approved_credentials(context: ToolContext) -> None:
    """Other credentials and the folders of orch stay hidden."""
    assert sorted(covers_of(context, [".ssh"])) == ["orch", "user/.kube/config"]
    assert sorted(covers_of(context, [".ssh", ".kube/config"])) == ["orch"]


@pytest.mark.parametrize(
    "path",
    [
        ".ssh",
        ".gnupg",
        ".netrc",
        ".git-credentials",
        ".config/git/credentials",
        ".config/gh",
        ".config/gcloud",
        ".npmrc",
        ".pypirc",
        ".aws/credentials",
        ".aws/sso/cache",
        ".azure",
        ".kube/config",
        ".docker/config.json",
        ".claude/.credentials.json",
        ".claude.json",
        ".codex/auth.json",
    ],
)
def test_credential_files_are_hidden(context: ToolContext, path: str) -> None:
    """Files of the user that contain keys and tokens."""
    place = context.cwd.parent / "user" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    assert f"user/{path}" in covers_of(context)
    assert f"user/{path}" not in covers_of(context, [path])


@pytest.mark.parametrize("source", ["agent", "process"])
@pytest.mark.parametrize(
    ("variable", "value", "path"),
    [
        ("XDG_CONFIG_HOME", "cfg", "cfg/gh"),
        ("XDG_CONFIG_HOME", "cfg", "cfg/git/credentials"),
        ("DOCKER_CONFIG", "docker", "docker/config.json"),
        ("KUBECONFIG", "kube/one", "kube/one"),
        ("GNUPGHOME", "keys", "keys"),
        ("NPM_CONFIG_USERCONFIG", "rc", "rc"),
        ("AWS_SHARED_CREDENTIALS_FILE", "aws", "aws"),
    ],
)
def test_credentials_at_the_place_of_a_variable_are_hidden(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, path: str, source: str
) -> None:
    """The agent or its process has the variable. A place that contains the agent's folder does not count."""
    top = context.cwd.parent
    (top / path).parent.mkdir(parents=True, exist_ok=True)
    (top / path).touch()
    monkeypatch.setenv(variable, str(top / value) if source == "process" else "")
    env = {**context.env, variable: f"{top / value}:{top / 'other'}"} if source == "agent" else context.env
    assert path in covers_of(replace(context, env=env))
    above = replace(context, env={**context.env, "GNUPGHOME": str(top), "KUBECONFIG": str(context.cwd)})
    assert "cwd" not in covers_of(above)


@pytest.mark.parametrize("target", [".ssh", ".ssh/id_work"])
def test_link_at_a_usable_path_makes_no_other_credentials_visible(context: ToolContext, target: str) -> None:
    """A command can replace a usable file by a link, because the file is visible."""
    home = context.cwd.parent / "user"
    (home / ".netrc").symlink_to(home / target)
    covers = covers_of(replace(context, policy=PolicyConfig(usable_credentials=("~/.netrc",))))
    assert covers["user/.ssh"].writable == ()


def test_usable_credentials_behind_a_link_stay_visible(context: ToolContext) -> None:
    """A user can keep the files elsewhere, and name them by the link or by their real path."""
    top = context.cwd.parent
    (top / "user/.ssh").rename(top / "keys")
    (top / "user/.ssh").symlink_to(top / "keys")
    assert "keys" in covers_of(context)
    for usable in ("~/.ssh", str(top / "keys")):
        assert "keys" not in covers_of(replace(context, policy=PolicyConfig(usable_credentials=(usable,))))


@pytest.mark.parametrize(
    ("usable", "hidden", "exceptions"),
    [
        ("~/.ssh", ["user/.kube/config"], ()),
        ("~/.ssh/id_work", ["user/.kube/config", "user/.ssh"], ("id_work",)),
        ("~", [], ()),
        ("~/.aws", ["user/.kube/config", "user/.ssh"], ()),
    ],
)
def test_usable_credentials_stay_visible(
    context: ToolContext, usable: str, hidden: list[str], exceptions: tuple[str, ...]
) -> None:
    """`usable_credentials` can name a folder above credentials, the credentials, or one file in a credential folder."""
    covers = covers_of(replace(context, policy=PolicyConfig(usable_credentials=(usable,))))
    assert sorted(set(covers) - {"orch"}) == hidden
    if "user/.ssh" in covers:
        folder = context.cwd.parent / "user/.ssh"
        assert covers["user/.ssh"].writable == tuple(str(folder / name) for name in exceptions)


def test_failed_command_lists_hidden_paths_on_one_line(context: ToolContext) -> None:
    """The note about hidden paths is one line even if a file name contains a line break."""
    (context.cwd / "a\nb.pem").write_text("x")
    covered = PathCovers(replace(context, policy=PolicyConfig(denied_paths=("*.pem",)))).find()
    assert "\n" not in covered.note
    for part in (".ssh", ".kube/config", "credentials=true", "denied: ", "b.pem"):
        assert part in covered.note


def test_bubblewrap_hides_the_same_paths(context: ToolContext) -> None:
    """A hidden file is replaced by /dev/null and a hidden folder by an empty one.

    Paths outside the sandbox are not mentioned.
    """
    (context.cwd / "in.pem").write_text("x")
    (context.cwd / "vault").mkdir()
    paths = [str(context.cwd / "in.pem"), str(context.cwd / "vault"), "/somewhere/else"]
    reach = bubblewrap.sandbox_paths(context.cwd, context.cwd.parent / "home")
    found = bubblewrap.bubblewrap_command(reach, str(context.cwd), 3, ["true"], [Cover(path) for path in paths])
    assert found[-2:] == ["--", "true"]
    text = " ".join(found)
    assert f"--ro-bind /dev/null {paths[0]}" in text
    assert f"--tmpfs {paths[1]} --remount-ro {paths[1]}" in text
    assert paths[2] not in text


def test_bubblewrap_mounts_a_writable_folder_after_the_readable_folder_that_contains_it(context: ToolContext) -> None:
    """The mount of the containing folder would hide an earlier mount of the writable folder."""
    top = str(context.cwd)
    reach = bubblewrap.sandbox_paths(context.cwd, context.cwd.parent / "home")
    cover = Cover(top, writable=(f"{top}/data/out",), readable=(f"{top}/data",))
    text = " ".join(bubblewrap.bubblewrap_command(reach, top, 3, ["true"], [cover]))
    assert f"--ro-bind-try {top}/data {top}/data --bind-try {top}/data/out {top}/data/out" in text


def test_bubblewrap_mounts_the_folders_above_a_hidden_path(context: ToolContext) -> None:
    """A mount point cannot be renamed. Parents come first, and all come before the path in them is hidden."""
    secret = context.cwd / "a" / "b" / "key.pem"
    secret.parent.mkdir(parents=True)
    secret.write_text("x")
    reach = bubblewrap.sandbox_paths(context.cwd, context.cwd.parent / "home")
    words = bubblewrap.bubblewrap_command(reach, str(context.cwd), 3, ["true"], [Cover(str(secret))])
    top, middle, inner = (f"--bind-try {path} {path}" for path in (context.cwd, secret.parents[1], secret.parent))
    text = " ".join(words)
    assert f"{top} {middle} {inner} " in text
    assert text.index(inner) < text.index(f"--ro-bind /dev/null {secret}")


async def test_command_is_refused_when_required_hiding_is_impossible(context: ToolContext) -> None:
    """With `require_denied_paths` and without mount namespaces, a command runs only if no path is denied."""
    policy = PolicyConfig(denied_paths=("*.pem",), require_denied_paths=True)
    bare = replace(context, sandbox=SandboxSpec(covers_paths=False), policy=policy)
    with pytest.raises(ToolError, match="require_denied_paths is set, and there are no mount namespaces"):
        await covered_starter(bare, "bash")
    allowed = replace(bare, policy=replace(policy, denied_paths=()))
    assert (await covered_starter(allowed, "bash"))[1].covers == ()


async def test_root_process_agent_needs_mount_namespaces_for_commands(context: ToolContext) -> None:
    """Without mount namespaces, commands of an agent in the root process are refused below sandbox level L2."""
    inside = replace(context, sandbox=SandboxSpec(covers_paths=False), in_process=True)
    with pytest.raises(ToolError, match="could act as the user, for there are no mount namespaces"):
        await covered_starter(inside, "bash")
    confined = replace(inside, sandbox=SandboxSpec("L2", covers_paths=False))
    assert (await covered_starter(confined, "bash"))[1].covers == ()
    assert (await covered_starter(replace(inside, in_process=False), "bash"))[1].covers == ()


def test_control_sockets_stay_visible_in_orch_folders(context: ToolContext, tmp_path: Path) -> None:
    """Control sockets stay readable in hidden folders, because the daemon serves a command as its agent."""
    inside, beside = tmp_path / "orch" / "daemon" / "control.sock", tmp_path / "runtime" / "0a-control.sock"
    for socket in (inside, beside):
        socket.parent.mkdir()
        socket.touch()
    covers = covers_of(replace(context, orch_folders=(*context.orch_folders, str(tmp_path / "runtime"))))
    assert covers["orch"].readable == (str(inside),)
    assert covers["runtime"].readable == (str(beside),)


@pytest.mark.parametrize("required", [False, True])
async def test_too_many_denied_files_refuse_the_command(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    """A command is an error if more files are denied than can be hidden, with and without `require_denied_paths`."""
    monkeypatch.setattr("orch_worker.policy.denied_files.MAX_MOUNTS", 1)
    for name in ("a.pem", "b.pem"):
        (context.cwd / name).write_text("x")
    policy = PolicyConfig(denied_paths=("*.pem",), require_denied_paths=required)
    hiding = replace(context, sandbox=SandboxSpec(covers_paths=True), policy=policy)
    with pytest.raises(
        ToolError,
        match=r"^Nothing was run: .* 2 paths are denied, of which at most 1 can be hidden",
    ):
        await covered_starter(hiding, "bash")


@pytest.mark.parametrize(
    ("has_host", "covers", "denied", "offered"),
    [
        (True, True, (), True),
        (True, True, ("*.pem",), True),
        (True, False, (), True),
        (True, False, ("*.pem",), False),
        (True, None, ("*.pem",), False),
        (False, True, (), True),
        (False, True, ("*.pem",), False),
    ],
)
def test_run_python_requires_denied_paths_hidden_from_its_process(
    context: ToolContext, has_host: bool, covers: bool | None, denied: tuple[str, ...], offered: bool
) -> None:
    """`run_python` is not offered if the process that runs its code can read denied paths."""
    given = replace(
        context,
        policy=PolicyConfig(denied_paths=denied),
        sandbox=replace(context.sandbox, covers_paths=covers),
        tool_host=ToolHostClient(never, umask=None, hides_paths=True) if has_host else None,
    )
    assert (run_python.missing(given) == "") is offered


async def never() -> HostChannel:
    """Start no tool host."""
    raise OSError("not started")


async def test_run_python_refuses_code_if_hiding_failed(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool host in which the mounts failed runs no code, even if no path is denied."""
    monkeypatch.setattr(own_namespace, "_failure", "it failed")
    with pytest.raises(ToolError, match="cannot be hidden from it: it failed"):
        await run_python.run(context, {"code": "1"})


def test_tool_host_cannot_write_the_transcript(context: ToolContext) -> None:
    """The session folder is readable and three folders in it are writable, also below a denied folder."""
    orch = context.cwd.parent / "orch"
    for name in ("memory", "packages"):
        (orch / name).mkdir()
    given = replace(context, policy=PolicyConfig(denied_paths=(str(orch),)))
    found = PathCovers(given).find_for_tool_host([str(orch / "packages")])
    assert found.credentials == ()
    assert found.covers != ()
    for cover in found.covers:
        assert cover.path == str(orch)
        assert context.folder is not None
        assert {str(context.folder / name) for name in ("scratch", "stash", "jobs")} <= set(cover.writable)
        assert str(context.folder) not in cover.writable
        assert {str(context.folder), str(orch / "packages")} <= set(cover.readable)
        assert str(orch / "memory") not in (*cover.writable, *cover.readable)


def test_daemon_socket_stays_reachable(context: ToolContext) -> None:
    """The control socket is readable in the hidden folder of orch as soon as the socket exists."""
    folder = context.cwd.parent / "orch/daemon"
    folder.mkdir()
    assert covers_of(context)["orch"].readable == ()
    (folder / "control.sock").touch()
    assert covers_of(context)["orch"].readable == (str(folder / "control.sock"),)
