"""`orch init`: finds keys and model servers, writes the model to config.toml, and sends one request."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orch.cli import run
from orch.cli.system import init
from orch.diagnostics import setup

Captured = pytest.CaptureFixture[str]
MODELS = {"data": [{"id": "embed", "max_model_len": 512}, {"id": "tiny", "max_model_len": 2048}]}
CHUNKS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "OK"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
)


class Handler(BaseHTTPRequestHandler):
    """Lists two models, and answers every request with OK."""

    def log_message(self, *_: Any) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        self._send(200 if self.path == "/v1/models" else 404, json.dumps(MODELS).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        events = (*map(json.dumps, CHUNKS), "[DONE]")
        self._send(200, b"".join(f"data: {event}\n\n".encode() for event in events), "text/event-stream")

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home, without servers on the usual ports."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(setup, "PORTS", ())
    return tmp_path / "home"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a model server on a usual port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr(setup, "PORTS", (server.server_port,))
        yield f"http://localhost:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that the user types."""
    lines: list[str] = []

    def read(prompt: str = "") -> str:
        print(prompt, end="")
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    return lines


def data(capsys: Captured, *argv: str, code: int = 0) -> Any:
    """Run `orch init --json` and return its output."""
    assert run(["init", *argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_server_on_a_usual_port_is_found_written_and_asked(url: str, home: Path, capsys: Captured) -> None:
    """One command is enough. Repeating it changes nothing."""
    found = data(capsys, "--yes")
    assert (found["model"], found["written"], found["answer"]) == (f"{url}#tiny", True, "OK")
    assert (found["context"], found["usage"]["cost_usd"]) == (2048, 0.0)
    assert [each["model"] for each in found["choices"]] == [f"{url}#tiny", f"{url}#embed"]
    assert (home / "config.toml").read_text() == f'model = "{url}#tiny"\n'
    again = data(capsys, "--yes", "--no-test")
    assert (again["written"], "answer" in again) == (False, False)


def test_json_alone_lists_and_writes_nothing(
    url: str, home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys come before servers."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    found = data(capsys)
    assert found["choices"][0]["reason"] == "OPENAI_API_KEY is set"
    assert found["choices"][1]["model"] == f"{url}#tiny"
    assert not (home / "config.toml").exists()
    assert "sk-1" not in json.dumps(found)


def test_user_chooses_a_model(url: str, home: Path, typed: list[str], capsys: Captured) -> None:
    """The question is repeated after a wrong number. The default is the first model."""
    typed += ["7", "2"]
    assert run(["init", "--no-test"]) == 0
    assert (home / "config.toml").read_text() == f'model = "{url}#embed"\n'
    out = capsys.readouterr().out
    assert f"  1  {url}#tiny  (vLLM at {url}, context 2,048)" in out
    assert "There is no model 7." in out
    typed += ["", "n"]
    assert run(["init"]) == 1
    assert "already sets the model" in capsys.readouterr().err
    typed += ["", "y"]
    assert run(["init"]) == 0
    assert "It answered 'OK'" in capsys.readouterr().out
    assert (home / "config.toml").read_text() == f'model = "{url}#tiny"\n'
    assert run(["init"]) == 0  # the input has ended
    assert "nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# mine\n[limits]\nmax_turns = 9\n", '# mine\nmodel = "{}"\n\n[limits]\nmax_turns = 9\n'),
        ('thinking = "low"', 'thinking = "low"\nmodel = "{}"\n'),
        ('model = "openai:x"  # why\r\n[limits]\r\n', 'model = "{}"  # why\r\n[limits]\r\n'),
        ("model = 'a:b:c'\n", 'model = "{}"\n'),
        ('[archival.summary]\nmodel = "openai:x"\n', 'model = "{}"\n\n[archival.summary]\nmodel = "openai:x"\n'),
    ],
)
def test_no_other_setting_changes(before: str, after: str, url: str, home: Path, capsys: Captured) -> None:
    """Comments, order and line ends stay."""
    home.mkdir()
    (home / "config.toml").write_bytes(before.encode())
    found = data(capsys, "--yes", "--no-test", "--replace")
    assert found["written"]
    assert (home / "config.toml").read_bytes() == after.format(f"{url}#tiny").encode()


@pytest.mark.parametrize(
    ("content", "argv", "problem"),
    [
        ('model = "openai:x"\n', ["--yes"], "already sets the model 'openai:x': pass --replace"),
        ('model = """openai:x"""\n', ["--yes", "--replace"], "cannot edit model in .*: write model = "),
        ("model = \n", ["--yes"], "cannot read .*config.toml: .*; correct the file, or move it away"),
        ("", ["--model", "gpt-4o"], "^orch: the model 'gpt-4o' names no provider: did you mean openai:gpt-4o"),
        ('model = "openai:x"\n', ["--model", "gpt-4o"], "did you mean openai:gpt-4o"),
        ("", [], "standard input is no terminal; pass --yes, --model or --json"),
        ("", ["--yes", "--server", "http://127.0.0.1:1/v1"], "1:1/v1: Connection refused; start the server"),
        (
            "",
            ["--yes", "--server", "nonsense"],
            "cannot use nonsense as a model server: .*; pass .*such as http://localhost:8080/v1",
        ),
    ],
)
@pytest.mark.usefixtures("url")
def test_refusal_changes_nothing(content: str, argv: Sequence[str], problem: str, home: Path, capsys: Captured) -> None:
    """The error says what to do."""
    home.mkdir()
    (home / "config.toml").write_text(content)
    assert run(["init", *argv]) != 0
    assert re.search(problem, capsys.readouterr().err)
    assert (home / "config.toml").read_text() == content


def test_nothing_found_is_an_error(home: Path, capsys: Captured) -> None:
    """The error names what to set or to start."""
    assert run(["init", "--yes"]) == 1
    assert "no key and no model server found: set the key of a provider" in capsys.readouterr().err
    assert not (home / "config.toml").exists()


def test_unknown_model_is_asked_again(url: str, home: Path, typed: list[str], capsys: Captured) -> None:
    """A typed name without a provider gets a suggestion."""
    typed += ["gpt-4o", "openai:gpt-4o"]
    assert run(["init", "--no-test"]) == 0
    assert "did you mean openai:gpt-4o?" in capsys.readouterr().out
    assert (home / "config.toml").read_text() == 'model = "openai:gpt-4o"\n'
    assert url


@pytest.mark.usefixtures("typed", "url")
def test_interrupt_at_the_question_changes_nothing(
    home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the question says that nothing was changed."""
    monkeypatch.setattr("builtins.input", interrupt)
    assert run(["init"]) == 130
    assert capsys.readouterr().err == "orch: interrupted: nothing was changed\n"
    assert not (home / "config.toml").exists()


def test_interrupt_of_the_test_call_names_the_setting(
    url: str, home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during the test call says that the model is set."""
    monkeypatch.setattr(init, "test_call", interrupt)
    assert run(["init", "--yes"]) == 130
    assert f"was not finished, and config.toml has model = '{url}#tiny'" in capsys.readouterr().err
    assert (home / "config.toml").exists()


def interrupt(*_: object) -> NoReturn:
    """Do what Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("status", "problem"), [(404, "said 404: .*is 'tiny' the right name"), (401, "said 401: bad key")]
)
def test_error_of_the_server_is_followed_by_the_next_steps(
    url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch, status: int, problem: str
) -> None:
    """The output has the status, the text of the server and the commands to try again."""
    answer = json.dumps({"error": {"message": "bad key"}}).encode()
    monkeypatch.setattr(Handler, "do_POST", lambda handler: handler._send(status, answer))
    assert run(["init", "--yes"]) == 1
    out = capsys.readouterr().out
    assert re.search(problem, out)
    assert f"orch init --model '{url}#tiny'" in out


@pytest.mark.parametrize(
    ("status", "problem"),
    [(404, "HTTP status 404; pass the address"), (401, "HTTP status 401: it requires a key; add it")],
)
def test_server_that_lists_no_models_is_refused(
    url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch, status: int, problem: str
) -> None:
    """The error has the address and the status."""
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler._send(status, b"no"))
    assert run(["init", "--yes", "--server", url]) == 2
    assert f"cannot use {url} as a model server: {problem}" in capsys.readouterr().err


def test_file_that_cannot_be_written_is_named(home: Path, capsys: Captured) -> None:
    """The error has the path, the cause and a remedy."""
    (home / "config.toml").mkdir(parents=True)
    assert run(["init", "--model", "openai:x", "--no-test"]) == 2
    assert f"cannot read {home}/config.toml: Is a directory; make it a readable file" in capsys.readouterr().err


def test_failed_test_call_is_reported(home: Path, capsys: Captured) -> None:
    """The model is written, and the command fails with the error."""
    found = data(capsys, "--model", "http://127.0.0.1:1/v1#x", code=1)
    assert found["error"]["type"] == "BackendError"
    assert "is it running?" in found["error"]["message"]
    assert found["written"]
    assert (home / "config.toml").exists()
