"""Invalid arguments of an orchestrator: they are refused with a reason, before anything is created."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, AsyncSubagent, Config, ConfigError, Orchestrator, ScriptedBackend
from orch.api.arguments import as_list
from orch.processes.in_process import InProcessLauncher
from orch.testing import fake_world


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"run": "../x"}, r"invalid run name '\.\./x'"),
        ({"run": ""}, "invalid run name ''"),
        ({"run": "x" * 300}, "up to 64 letters"),
        ({"run": "run-mine"}, "and not with 'run-'"),
        ({"run": 5}, "run must be a string; got 5"),
        ({"config": {}}, "config must be an orch.Config; got {}"),
        ({"env": 5}, "env must be a mapping of variable names to values; got a int$"),
        ({"env": {1: "a"}}, "env must map strings to strings; got 1: str"),
        ({"env": {"PATH": None}}, "got 'PATH': NoneType"),
        ({"keys": "k"}, "keys must be a mapping of variable names to API keys; got a str$"),
        ({"keys": {"OPENAI_API_KEY": b"secret"}}, "got 'OPENAI_API_KEY': bytes"),
        (
            {"keys": {"ANTHROPIC_BASE_URL": "http://localhost:1"}},
            "ANTHROPIC_BASE_URL, which is the address of a server",
        ),
        ({"home": ""}, "home must not be empty"),
        ({"home": "a\0b"}, r"home must be a path \(string or Path\); got 'a\\x00b'"),
        ({"home": "a\ud800"}, r"home must be a path \(string or Path\); got 'a\\ud800'"),
        ({"home": b"a"}, "home must be a string or a Path; got b'a'"),
        ({"model": object()}, "model must be a string, `provider:model`; got <object"),
        ({"model": Config()}, "got a Config. Pass a configuration as config=$"),
        (
            {"launcher": "zygote"},
            "launcher must be a launcher class or a function that returns a launcher; got 'zygote'",
        ),
        ({"approve": "auto"}, "approve must be a function; got 'auto'"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_invalid_arguments_are_refused(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    """The error names the argument and what it must be; the home folder is not created."""
    with pytest.raises(ConfigError, match=match):
        AsyncOrchestrator(**({"home": tmp_path / "home"} | given))
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, _: o.map(["a"], "{item}", worker=6), "map() got an unexpected keyword argument 'worker'; 'workers'"),
        (
            lambda o, _: o.map(["a"], "{item}", retuns=str),
            "map() got an unexpected keyword argument 'retuns'; 'returns'",
        ),
        (lambda o, _: o.map(["a"], "{item}", tool=[]), "map() got an unexpected keyword argument 'tool'; 'tools'"),
        (lambda o, _: o.spawn("a", modle="x"), "spawn() got an unexpected keyword argument 'modle'; 'model'"),
        (lambda o, _: o.spawn("a", zzz=1), "spawn() got an unexpected keyword argument 'zzz'"),
        (lambda o, _: o.session(sytem="x"), "session() got an unexpected keyword argument 'sytem'; 'system'"),
        (lambda o, _: o.session(tool=[]), "session() got an unexpected keyword argument 'tool'; 'tools'"),
        (
            lambda _, agent: agent.query("a", retuns=str),
            "query() got an unexpected keyword argument 'retuns'; 'returns'",
        ),
        (lambda o, _: o.ask_all([], "a", time=1), "ask_all() got an unexpected keyword argument 'time'; 'timeout'"),
    ],
)
def test_a_misspelt_argument_names_the_called_method_and_the_nearest_argument(
    tmp_path: Path, call: Callable[[Any, Any], Any], message: str
) -> None:
    """Nothing is started."""
    with Orchestrator(home=tmp_path, env={}, launcher=InProcessLauncher) as o:
        agent = o.spawn("a", backend=ScriptedBackend(["b"]))
        with pytest.raises(TypeError) as caught:
            call(o, agent)
        assert str(caught.value) == message.replace("; ", "; did you mean ") + "?" * ("; " in message)
        assert [row.id for row in o.agents(all=True)] == [agent.id]


def test_deleted_working_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, neither the project's configuration nor the folder of an agent can be determined."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="the current folder no longer exists; change to"):
        AsyncOrchestrator(home=tmp_path / "home")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tools": [None]}, "a tool must be a name or a function; got None"),
        ({"tools": "read_file"}, "tools must be a list"),
        ({"backend": "x"}, r"backend must be an object such as ScriptedBackend.*'x'"),
        ({"env": 3}, "env=3"),
        ({"task": b"x"}, r"task must be a string.*b'x'"),
        ({"cwd": 5}, r"cwd must be a path \(string or Path\); got 5"),
        ({"cwd": "a\0b"}, r"cwd must be a path \(string or Path\); got 'a\\x00b'"),
        ({"cwd": "\ud800"}, "cwd must be a path"),
        ({"tools": 5}, "tools must be a list; got 5"),
        ({"skills": 5}, "skills must be a list; got 5"),
        ({"history": None}, "history must be a list; got None"),
        ({"max_cost": "\ud800"}, "a number of dollars above 0"),
        ({"prompt_template": 5}, "prompt_template must be a template, its name or its file; got 5"),
        (
            {"limits": {"max_turns": 3}},
            r"limits must be an orch.Budget or orch.Limits; got {'max_turns': 3}",
        ),
        ({"context": "all"}, r"context must be 'none' or 'brief' or 'full'; got 'all'"),
        ({"queue_mode": "some"}, r"queue_mode must be 'one-at-a-time' or 'all'; got 'some'"),
        ({"isolation": "docker"}, r"isolation must be 'worktree'; got 'docker'"),
        ({"depth": 9}, r"depth must be 0 or 1; got 9"),
        ({"budget": 5}, r"budget must be an orch.Budget or orch.Limits; got 5"),
        ({"cwd": "/nope"}, "the working folder /nope does not exist"),
        ({"cwd": "/n\udcff"}, "has a name that is not UTF-8: rename it"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_invalid_spawns_are_refused(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    """The arguments of `spawn` are checked before an agent is created."""
    async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as o:
        options = {"task": "t", "backend": ScriptedBackend(["x"])} | given
        with pytest.raises(ConfigError, match=match):
            await o.spawn(options.pop("task"), **options)
        assert await o.agents(all=True) == []


def test_any_iterable_is_accepted_as_a_list() -> None:
    """Generators, dictionary keys and sequences are converted to lists."""

    class Places:
        def __getitem__(self, place: int) -> str:
            return ["a", "b"][place]

    given: list[Any] = [(each for each in "ab"), {"a": 1, "b": 2}.keys(), Places()]
    assert [as_list("tools", each) for each in given] == [["a", "b"]] * 3


def test_tilde_in_a_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`home=` accepts `~`, like the variable ORCH_HOME."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert AsyncOrchestrator(home="~/agents", env={}).home == tmp_path / "agents"


Deed = Callable[[AsyncSubagent, Any], Awaitable[Any]]


@pytest.mark.parametrize(
    ("deed", "match"),
    [
        (
            lambda agent, _: agent.steer(None),
            r"invalid parameters for steer: Expected `str`, got `None` - at `\$.text`",
        ),
        (lambda agent, _: agent.follow_up(b"x"), "text"),
        (lambda agent, _: agent.session.compact(5), r"invalid parameters for compact: .*`\$.instructions`"),
        (lambda agent, _: agent.value(None), r"invalid parameters for take value: .*`\$.name`"),
        (lambda agent, _: agent.session.fork(name=5), r"invalid parameters for fork: .*`\$.name`"),
        (lambda agent, _: agent.session.checkout(b"5"), r"`\$.change.to`"),
        (lambda agent, _: agent.show(messages="all"), r"invalid parameters for show: .*`\$.messages`"),
        (lambda agent, _: agent.execute(None), r"invalid parameters for execute: .*`\$.text`"),
        (lambda agent, _: agent.session.compact(object()), "Encoding objects of type object is unsupported"),  # type: ignore
        (lambda agent, _: agent.show(messages=10**30), "an integer of more than 64 bits"),
        (lambda agent, _: agent.revoke_tools(keep=None), r"invalid parameters for revoke tools: .*`\$.keep`"),
        (lambda agent, _: agent.ping("x"), "ping needs bytes"),
        (lambda agent, _: agent.ping(timeout=None), "ping needs bytes and a number of seconds"),
        (lambda agent, _: agent.query("x", returns=5), "a type that JSON can be"),
        (
            lambda agent, _: agent.query("x", on_event=5),
            "on_event must be a plain function.*got 5",
        ),
        (lambda agent, _: agent.query("x", on_event=asyncio.sleep), "on_event must be a plain function"),
        (lambda agent, _: agent.resume(budget=5), r"budget must be an orch.Budget; got 5"),
        (lambda _, o: o.events(ref=5), r"invalid parameters for events: .*`\$.ref`"),
        (lambda _, o: o.sessions.import_(5), r"path must be a path \(string or Path\); got 5"),
        (
            lambda _, o: o.sessions.import_("x", tools="read_file"),
            r"tools must be a list of names.*Write \['read_file'\]",
        ),
        (lambda _, o: o.ask_all("a", "x"), "agents must be a list; got 'a'"),
        (lambda _, o: o.session(system=5), "system must be a string; got 5"),
        (lambda agent, o: o.sessions.export(agent.id, output=5), r"output must be a path \(string or Path\); got 5"),
    ],
)
async def test_invalid_method_arguments_are_refused_at_once(tmp_path: Path, deed: Deed, match: str) -> None:
    """The error names the method or the parameter, and is raised by the call itself."""
    async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as o:
        agent = await o.spawn("t", backend=ScriptedBackend(["x"]))
        with pytest.raises(ConfigError, match=match):
            await deed(agent, o)


async def test_lone_surrogates_in_texts_are_replaced(tmp_path: Path) -> None:
    """A steering text is normalized like a prompt."""
    async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as o:
        agent = await o.spawn("t", backend=ScriptedBackend(["x"]))
        await agent.steer("a\ud800b")
        assert [each.text for each in await agent.queue.list()] == ["a\ufffdb"]
