"""Extensions are held to the files, hosts and programs of their manifests while they run; nobody else is."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hooked import Hooked, Watched
from orch_protocol.agent.spec import Birth
from orch_protocol.core.errors import QueryTimeoutError
from orch_protocol.resources.extensions import ExtensionSpec, Manifest, Permissions
from orch_protocol.services.requests import Spawn
from orch_worker.extensions.loader import Extension, load
from orch_worker.tools.api.base import ToolContext
from orch_worker.transport.worker_endpoint import Host

CODE = """
import asyncio, os, pathlib, socket, sqlite3, subprocess, threading
{top}

def register(extension):
    @extension.hook("turn_end", kind="transform" if {change!r} else "observe")
    def seen(event, ctx):
        {body}

    @extension.tool
    def act(path: str) -> str:
        "Act."
        return pathlib.Path(path).read_text()
"""
Made = Callable[..., Extension]


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Make an extension whose one hook runs `body`, with some permissions, for an agent in tmp_path/desk."""
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "mine.txt").write_text("mine")
    (tmp_path / "secret.txt").write_text("secret")

    def make(body: str = "pass", top: str = "", **may: Any) -> Extension:
        place = tmp_path / "ext" / "pack"
        place.mkdir(parents=True, exist_ok=True)
        (place / "own.txt").write_text("own")
        (place / "extension.py").write_text(CODE.format(body=body, top=top, change=False))
        lists = {name: tuple(value) if isinstance(value, list) else value for name, value in may.items()}
        permissions = Permissions(("turn_end",), ("act",), **lists)
        said = "".join(f"{key} = {json.dumps(value)}\n" for key, value in msgspec.to_builtins(permissions).items())
        (place / "extension.toml").write_text(f'name = "pack"\n[permissions]\n{said}')
        spec = ExtensionSpec(str(place), Manifest("pack", permissions=permissions), ("act",))
        return load(spec, tmp_path / "desk")

    return make


def ran(extension: Extension) -> Any:
    """Run the extension's hook."""
    return extension.hooks[0].handler(None, None)


class TestFiles:
    """Paths."""

    @pytest.mark.parametrize(
        ("body", "what"),
        [
            ("open('{there}/secret.txt').read()", "may not read .*secret.txt: permissions.reads"),
            ("pathlib.Path('{there}/secret.txt').read_bytes()", "may not read"),
            ("os.open('{there}/secret.txt', os.O_RDONLY)", "may not read"),
            ("os.listdir('{there}')", "may not read"),
            ("open('{there}/desk/../secret.txt')", "may not read .*/secret.txt"),
            ("open('{there}/desk/new.txt', 'w')", "may not change .*new.txt: permissions.writes"),
            ("os.open('{there}/desk/new.txt', os.O_CREAT | os.O_WRONLY)", "may not change"),
            ("os.remove('{there}/desk/mine.txt')", "may not change"),
            ("os.rename('{there}/desk/mine.txt', '{there}/x')", "may not change"),
            ("os.symlink('{there}/secret.txt', '{there}/desk/link')", "may not change"),
            ("os.link('{there}/desk/mine.txt', '{there}/desk/link')", "may not change"),
            ("os.mkfifo('{there}/desk/pipe')", "may not change .*/desk/pipe"),
            ("os.mkfifo('pipe', dir_fd=os.open('{there}/desk', os.O_RDONLY))", "may not change .*/desk/pipe"),
            ("os.mknod('{there}/desk/node')", "may not change"),
            ("os.mkdir('{there}/desk/new')", "may not change"),
            ("os.truncate('{there}/desk/mine.txt', 0)", "may not change"),
            ("os.chmod('{there}/desk/mine.txt', 0)", "may not change"),
            ("os.utime('{there}/desk/mine.txt')", "may not change"),
            ("os.replace('{there}/desk/mine.txt', '{there}/desk/x')", "may not change"),
            ("shutil.copy('{there}/desk/mine.txt', '{there}/desk/new.txt')", "may not change"),
            ("shutil.move('{there}/desk/mine.txt', '{there}/desk/new.txt')", "may not change"),
            ("shutil.rmtree('{there}/desk')", "may not change"),
            ("shutil.chown('{there}/desk/mine.txt', user=os.getuid())", "may not change"),
            ("os.remove('{there}/leads_in')", "may not change .*/leads_in"),
            ("os.rename('{there}/leads_in', '{there}/y')", "may not change .*/leads_in"),
            ("sqlite3.connect('{there}/desk/new.db')", "may not change"),
            ("sqlite3.connect('file:{there}/new.db?mode=rwc', uri=True)", "may not change .*/new.db: "),
            ("sqlite3.connect('file:{there}/secret.txt?mode=ro', uri=True)", "may not read .*/secret.txt: "),
            ("os.remove('mine.txt', dir_fd=os.open('{there}/desk', os.O_RDONLY))", "may not change .*mine.txt"),
            ("os.open('new.txt', os.O_CREAT, dir_fd=os.open('{there}/desk', 0))", "may not change .*new.txt"),
            ("eval(compile('open(\"{there}/secret.txt\")', 'elsewhere', 'eval'))", "may not read"),
        ],
    )
    def test_what_is_not_permitted_is_refused(self, made: Made, tmp_path: Path, body: str, what: str) -> None:
        """However it is opened; the error names the extension, the file and the permission. Nothing has happened."""
        (tmp_path / "leads_in").symlink_to(tmp_path / "ext" / "pack" / "out")
        extension = made(body.format(there=tmp_path), top="import shutil", reads=["."], writes=["../ext/pack/out"])
        with pytest.raises(PermissionError, match=f"extension 'pack' {what}"):
            ran(extension)
        assert sorted(os.listdir(tmp_path / "desk")) == ["mine.txt"]
        assert (tmp_path / "desk" / "mine.txt").read_text() == "mine"
        assert (tmp_path / "leads_in").is_symlink()

    def test_what_is_permitted_is_done(self, made: Made, tmp_path: Path) -> None:
        """Paths are seen from the agent's folder; what may be written may be read; its own folder always may be."""
        there = tmp_path / "desk"
        for path in (there / "mine.txt", tmp_path / "ext" / "pack" / "own.txt"):
            ran(made(f"pathlib.Path('{path}').read_text()", reads=["mine.txt"]))
        (there / "out").mkdir()
        ran(made(f"pathlib.Path('{there}/out/new.txt').write_text('x')", writes=["out"]))
        assert (there / "out" / "new.txt").read_text() == "x"

    def test_folders_of_its_own_are_removed_with_all_that_is_in_them(
        self, made: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is seen from an open folder is in that one, not in the folder where the process works."""
        monkeypatch.chdir("/")
        ran(
            made(
                "d = tempfile.mkdtemp(); os.mkdir(d + '/a'); open(d + '/a/b', 'w').close(); shutil.rmtree(d); "
                "assert not os.path.exists(d)",
                top="import shutil, tempfile",
                writes=["$TMPDIR"],
            )
        )

    def test_a_refusal_says_why_whoever_names_a_file_to_it(self, made: Made, tmp_path: Path) -> None:
        """Python 3.13 writes a file's name into errors of system calls; what was not permitted is still said."""
        body = f"""
        try: os.remove('{tmp_path}/desk/mine.txt')
        except OSError as error:
            error.filename = '{tmp_path}/desk'
            raise"""
        with pytest.raises(PermissionError, match=r"extension 'pack' may not change .*mine.txt: permissions.writes"):
            ran(made(body))

    @pytest.mark.parametrize(
        "name", ["':memory:'", "''", "'file::memory:', uri=True", "'file:x?mode=memory', uri=True"]
    )
    def test_a_database_in_memory_is_no_file(self, made: Made, name: str) -> None:
        """Nothing has to be permitted for it."""
        body = f"with contextlib.closing(sqlite3.connect({name})) as it: it.execute('create table x (a)')"
        ran(made(body, top="import contextlib"))

    def test_a_link_leads_nowhere_else(self, made: Made, tmp_path: Path) -> None:
        """What counts is where a name leads."""
        (tmp_path / "desk" / "link").symlink_to(tmp_path / "secret.txt")
        with pytest.raises(PermissionError, match=r"may not read .*secret\.txt"):
            ran(made(f"open('{tmp_path}/desk/link')", reads=["."]))

    def test_modules_can_be_imported_in_it(self, made: Made) -> None:
        """Python's own files may be read, whatever the manifest says."""
        sys.modules.pop("wave", None)
        ran(made("__import__('wave')"))

    def test_code_at_its_import_is_held(self, made: Made, tmp_path: Path) -> None:
        """Before it has registered anything."""
        with pytest.raises(Exception, match="left out: NotPermittedError: extension 'pack' may not read"):
            made(top=f"open({str(tmp_path / 'secret.txt')!r})")

    async def test_its_tools_are_held(self, made: Made, tmp_path: Path) -> None:
        """As its hooks are, whatever the agent's policy lets it be called for."""
        [tool] = made(reads=["."]).tools
        context = ToolContext(tmp_path / "desk")
        assert (await tool.run(context, {"path": str(tmp_path / "desk" / "mine.txt")})).text == "mine"
        with pytest.raises(PermissionError, match="may not read"):
            await tool.run(context, {"path": str(tmp_path / "secret.txt")})


class TestNetwork:
    """Hosts."""

    @pytest.mark.parametrize(
        "body",
        [
            "socket.create_connection(('127.0.0.1', {port}))",
            "with socket.socket() as s: s.connect(('127.0.0.1', {port}))",
            "with socket.socket(type=socket.SOCK_DGRAM) as s: s.sendto(b'x', ('127.0.0.1', {port}))",
            "socket.getaddrinfo('localhost', {port})",
            "__import__('urllib.request').request.urlopen('http://127.0.0.1:{port}')",
            "asyncio.run(asyncio.open_connection('127.0.0.1', {port}))",
        ],
    )
    def test_a_host_that_is_not_permitted_is_not_reached(self, made: Made, listening: int, body: str) -> None:
        """By whatever way; the error names it."""
        with pytest.raises(Exception, match=r"extension 'pack' may not reach (127\.0\.0\.1|localhost): permissions"):
            ran(made(body.format(port=listening), network=["example.invalid"]))

    @pytest.mark.parametrize("network", [["127.0.0.1"], ["localhost"], ["*"]])
    def test_one_that_is_permitted_is(self, made: Made, listening: int, network: list[str]) -> None:
        """By its name or its address."""
        ran(made(f"socket.create_connection(('127.0.0.1', {listening})).close()", network=network))


class TestPrograms:
    """What nobody could hold."""

    @pytest.mark.parametrize(
        "body",
        [
            "subprocess.run(['true'])",
            "os.system('true')",
            "os.fork()",
            "os.posix_spawn('/bin/true', ['true'], {})",
            "os.kill(os.getpid(), 0)",
            "__import__('multiprocessing.util').util.spawnv_passfds(b'/bin/true', [b'true'], ())",
        ],
    )
    def test_programs_are_not_started_unasked(self, made: Made, body: str) -> None:
        """They would do what they like."""
        with pytest.raises(PermissionError, match=r"may not start programs .*: permissions\.programs is not set"):
            ran(made(body))

    def test_with_the_permission_they_are(self, made: Made) -> None:
        """Said in the manifest, and shown by the list."""
        ran(made("os.kill(os.getpid(), 0)", programs=True))


class TestWhoseDoing:
    """What an extension starts is its own; what others do is not."""

    def test_threads_that_it_starts_are_held(self, made: Made, tmp_path: Path) -> None:
        """Also where none of its code is in them."""
        target = tmp_path / "desk" / "mine.txt"
        body = f"t = threading.Thread(target=os.remove, args=({str(target)!r},)); t.start(); t.join()"
        raised: list[Any] = []
        hook, threading.excepthook = threading.excepthook, lambda args: raised.append(args.exc_value)
        try:
            ran(made(body))
        finally:
            threading.excepthook = hook
        assert target.exists()
        assert "may not change" in str(raised[0])

    async def test_tasks_that_it_starts_are_held(self, made: Made, tmp_path: Path) -> None:
        """They inherit whose they are."""
        remove = f"asyncio.to_thread(os.remove, '{tmp_path}/secret.txt')"
        body = f"event.append(asyncio.get_running_loop().create_task({remove}))"
        tasks: list[asyncio.Task[None]] = []
        made(body).hooks[0].handler(tasks, None)
        with pytest.raises(PermissionError, match="may not change"):
            await tasks[0]

    async def test_work_in_a_pool_is_held_as_who_hands_it_in(self, made: Made, tmp_path: Path) -> None:
        """Whoever made the thread: what the agent looks up in one that an extension's tool began is the agent's doing,
        and what an extension hands to one that was there before is its own."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        body = f"event.append(asyncio.get_running_loop().run_in_executor(None, os.remove, '{tmp_path}/secret.txt'))"
        extension = made(body, reads=["."])
        path = str(tmp_path / "desk" / "mine.txt")
        assert (await extension.tools[0].run(ToolContext(tmp_path / "desk"), {"path": path})).text == "mine"
        assert await loop.getaddrinfo("localhost", 80)
        began: list[asyncio.Future[None]] = []
        extension.hooks[0].handler(began, None)
        with pytest.raises(PermissionError, match=r"may not change .*secret\.txt"):
            await began[0]

    def test_nobody_else_is_held(self, made: Made, tmp_path: Path) -> None:
        """The worker opens, connects and starts what it likes, with extensions there."""
        made()
        assert (tmp_path / "secret.txt").read_text() == "secret"
        os.kill(os.getpid(), 0)

    async def test_what_it_asks_of_the_root_goes_by_a_file_of_the_agents(self, made: Made, tmp_path: Path) -> None:
        """However much it says: whoever writes that down for the root is not held as the extension is."""

        class Nowhere:
            def send(self, data: bytes) -> None:
                """Reach nobody."""

            def close(self) -> None:
                """Be left."""

        host = Host(lambda _: Nowhere(), birth=Birth(b""), incarnation=1, spool=tmp_path / "spool")
        grip = made()._grip
        assert grip is not None
        with pytest.raises(QueryTimeoutError):
            await grip.held(host.call_root)("spawn", Spawn("x" * (2 << 20)), 0.0)
        assert [path.stat().st_size > 2 << 20 for path in (tmp_path / "spool").iterdir()] == [True]
        host._courier.close()

    async def test_a_turn_goes_on_and_the_error_is_the_hooks(self, made: Made, tmp_path: Path) -> None:
        """A refusal is a failure of that hook like any other: counted, named, told."""
        talk = Hooked(Watched("done"), made(f"open('{tmp_path}/secret.txt')").hooks[0])
        reply = await talk.ask()
        assert reply.text == "done"
        assert any("NotPermittedError: extension 'pack' may not read" in text for _, text in talk.events)
