"""Bodies of error responses: the message that is shown for each shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.backends.formats.error_body import is_web_page, read_error_body
from orch_worker.backends.formats.provider_error import ProviderError
from orch_worker.backends.http.failures import MAX_MESSAGE_CHARS, Endpoint, classify_error

NGINX = (
    "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n"
    "<hr><center>nginx/1.24</center>\r\n</body>\r\n</html>"
)
PAGE = (
    "<!DOCTYPE html><!--[if lt IE 7]> x <![endif]--><html><head><title>Access denied &amp; blocked</title>"
    "<style>body {color: red}</style><script>var a = '<b>';</script></head><body><h1>Sorry</h1><p>You were blocked.</p>"
)
FASTAPI = [
    {"loc": ["body", "messages", 0, "role"], "msg": "field required", "type": "missing"},
    {"loc": ["body", "model"], "msg": "not a string", "type": "string_type"},
]
NESTED = json.dumps({"error": {"message": "no such voice", "type": "invalid_request_error"}})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "bad thing"}}, "bad thing"),
        ({"message": "bad thing", "type": "x", "code": 400}, "bad thing"),
        ({"error": "model 'x' not found"}, "model 'x' not found"),
        ("model 'x' not found", "model 'x' not found"),
        ({"error": {"code": 7}, "message": "bad thing"}, "bad thing"),
        ({"error": ["one", "two"]}, "one; two"),
        (["one", {"message": "two"}, "one"], "one; two"),
        ([{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}], "bad"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": FASTAPI}, "body.messages.0.role: field required; body.model: not a string"),
        ({"detail": {"error": {"message": "deep"}}}, "deep"),
        ({"errors": [{"message": "first"}, {"detail": "second"}]}, "first; second"),
        ({"title": "Forbidden region", "status": 451}, "Forbidden region"),
        ({"error": "server_error", "error_description": "try later"}, "server_error"),
        ({"error": "invalid_request", "message": "the model is missing"}, "the model is missing: invalid_request"),
        ({"success": False, "cause": 3}, '{"success":false,"cause":3}'),
        (NESTED, "no such voice"),
        ({"error": {"message": NESTED}}, "no such voice"),
        ({"error": {"message": "Failed", "metadata": {"raw": NESTED}}}, "Failed: no such voice"),
        ({"error": {"message": "Failed", "metadata": {"raw": "boom"}}}, "Failed: boom"),
        ("upstream connect error", "upstream connect error"),
        ("{not json", "{not json"),
        (NGINX, "502 Bad Gateway: nginx/1.24"),
        (PAGE, "Access denied & blocked: Sorry You were blocked."),
        ("<h1>Bad Request</h1>", "Bad Request"),
        ("", "Bad Gateway (the response has no message)"),
        (None, "Bad Gateway (the response has no message)"),
        ({}, "Bad Gateway (the response has no message)"),
        ([], "Bad Gateway (the response has no message)"),
        ({"error": None, "message": ""}, '{"error":null,"message":""}'),
        ({"error": {"message": 5}}, "5"),
    ],
)
def test_message_of_each_shape_is_found(body: Any, text: str) -> None:
    """The text of the server is found in JSON of each shape, in plain text and in web pages."""
    assert read_error_body(body, 502).text == text


def test_status_without_a_phrase_has_a_text() -> None:
    """An empty body of an unusual status still has a text."""
    assert read_error_body("", 529).text == "the response has no message"


def test_kinds_and_numbers_of_nested_errors_are_found() -> None:
    """Types, codes and the numbers of the context window are found at each level."""
    inner = {"error": {"type": "exceed_context_size_error", "n_ctx": 8192, "n_prompt_tokens": 9000, "code": 400}}
    found = read_error_body({"error": {"message": f"upstream said {json.dumps(inner)}", "code": "bad_gateway"}})
    assert set(found.kinds) == {"bad_gateway", "exceed_context_size_error", "400"}
    assert found.fields == {"n_ctx": 8192, "n_prompt_tokens": 9000}


FIELDS = ["error", "message", "detail", "code", "metadata", "raw", "loc", "n_ctx", "x"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_each_body_has_a_text(body: Any) -> None:
    """Reading a body of any shape raises no error and returns a text."""
    assert read_error_body(body, 400).text


def test_long_message_is_shortened() -> None:
    """A long message is cut, so that an error stays readable."""
    failure = classify_error(Endpoint("p", "m", "http://h"), ProviderError.read("x" * 100_000, 400))
    assert len(str(failure.error)) < MAX_MESSAGE_CHARS + 100
    assert str(failure.error).endswith("x...")


@pytest.mark.parametrize("text", ["data: {}\n\n", '{"a": "<html>"}', "event: x", "", "<think>hm</think>"])
def test_other_texts_are_no_web_page(text: str) -> None:
    """Only a text that begins like an HTML page is a web page."""
    assert not is_web_page(text)


@pytest.mark.parametrize(
    "text", [NGINX, PAGE, "\n<HTML>", '<?xml version="1.0"?>\n<!DOCTYPE html>', "<!-- x --><html>"]
)
def test_web_page_is_recognized(text: str) -> None:
    """Web pages may begin with a declaration or a comment."""
    assert is_web_page(text)
