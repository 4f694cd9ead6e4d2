"""Pages of the web as text that a model reads."""

from __future__ import annotations

import pytest

from orch_worker.tools.api.base import ToolError
from orch_worker.tools.web.html_text import html_text
from orch_worker.tools.web.http import FetchedPage
from orch_worker.tools.web.web import page_text

PAGE = """<!DOCTYPE html><html><head><title>My   page</title><style>a{}</style><script>x = "<p>no</p>"</script></head>
<body><nav><ul><li><a href="/home">Home</a></li><li><a href="#x">Here</a></li></ul></nav>
<h1>Big &amp; <em>bold</em></h1><p>Some   text
with a <a href="../other page">link</a> and <code>x = 1</code>.<br>Second line.</p>
<ol><li>one<ul><li>sub</li></ul></li><li>two</li></ol>
<table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table>
<pre><code>def f():
    return 1
</code></pre><p>End<svg><text>no</text></svg><img src=x alt="A cat"><a href="javascript:x">bad</a><a href="/e"></a>
<div>unclosed <p>last"""


TEXT = """My page

- [Home](https://a.test/home)
- Here

# Big & bold

Some text with a [link](https://a.test/other%20page) and `x = 1`.
Second line.

1. one
  - sub
2. two

| A | B
| 1 | 2

```
def f():
    return 1
```

End(image: A cat)bad

unclosed

last"""


class TestHtml:
    """Pages as text."""

    def convert(self, html: str) -> str:
        return html_text(html, "https://a.test/x/y.html", float("inf"))

    def test_page(self) -> None:
        """Headings, lists, links, tables and code stay; scripts, styles and drawings go."""
        assert self.convert(PAGE) == TEXT

    @pytest.mark.parametrize(
        ("html", "text"),
        [
            ("", ""),
            ("plain text", "plain text"),
            ("a &lt; b &amp;&amp; c &nbsp;d", "a < b && c d"),
            ("x" * 40_000 + " &amp; y", "x" * 40_000 + " & y"),
            ("<p>" + "x" * 40_000, "x" * 40_000),
            ("<script>never closed <p>no", ""),
            ("<p>a</p></p></div></ul></a></pre>b", "a\n\nb"),
            ("<ul><li>a</ul>b", "- a\n\nb"),
            ("<template><p>no</p></template>yes", "yes"),
            ("<a href='http://[bad'>x</a>", "x"),
            ("<!-- a --><p>b<!-- c -->", "b"),
        ],
    )
    def test_odd_pages(self, html: str, text: str) -> None:
        """Fragments, unclosed and stray tags and long texts lose no text that would be seen."""
        assert self.convert(html) == text

    @pytest.mark.parametrize(
        "piece", ["<div>", "<", "<a ", "<!--", "&", "<!x", "<?", "</", "<a b='", "<ul><li>", "<script></", "[]("]
    )
    def test_hostile_pages_end(self, piece: str) -> None:
        """A page made to be slow is left at the deadline, and what was read of it is soon made a text."""
        assert len(html_text(piece * 200_000, "https://a.test", 0.0)) < 200
        self.convert(piece * 2_000)

    def test_what_looks_like_links_is_soon_a_text(self) -> None:
        """Brackets in the text of a page are text, however many there are of them."""
        assert self.convert("[](" * 500_000) == "[](" * 500_000

    @pytest.mark.parametrize(
        ("html", "text"),
        [
            ("a<a href=/x> </a>b", "a b"),
            ("a<a href=/x><img src=y></a>b", "ab"),
            ("<a href=/x><img src=y alt=z></a>", "[(image: z)](https://a.test/x)"),
            ("<a href=/x><a href=/y>t</a></a>", "[[t](https://a.test/y)](https://a.test/x)"),
            ("<a href=/x></a>" * 3, ""),
            ("<a href=/x>never closed", "[never closed"),
        ],
    )
    def test_links_with_nothing_in_them_go(self, html: str, text: str) -> None:
        """A link that nobody would see is left out, and no other."""
        assert self.convert(html) == text

    @pytest.mark.parametrize(
        ("content_type", "body", "text"),
        [
            ("text/html; charset=iso-8859-1", b"<p>caf\xe9", "caf\u00e9"),
            ("text/html", b'<meta charset="windows-1252"><p>\x93x\x94', "\u201cx\u201d"),
            ("text/html; charset=nonsense", "caf\u00e9".encode(), "caf\u00e9"),
            ("text/plain; charset=hex", b"abc", "abc"),
            ("text/plain; charset=idna", b"a\xff", "a\ufffd"),
            (
                "text/plain; charset=punycode",
                b"a" * 500_000 + b"-" + b"b" * 500_000,
                f"{'a' * 500_000}-{'b' * 500_000}",
            ),
            ("text/plain", b"<p>as it is</p>", "<p>as it is</p>"),
            ("application/json", b'{"a": 1}', '{"a": 1}'),
            ("", b"  <!DOCTYPE html><p>x", "x"),
            ("application/octet-stream", b"words", "words"),
        ],
    )
    def test_readable(self, content_type: str, body: bytes, text: str) -> None:
        """Text is decoded as it says, and only HTML is converted."""
        assert page_text(FetchedPage("https://a.test/", 200, content_type, body), float("inf")) == text

    @pytest.mark.parametrize(("content_type", "body"), [("image/png", b"x"), ("application/pdf", b"%PDF\0\0")])
    def test_not_readable(self, content_type: str, body: bytes) -> None:
        """What is no text is an error that says what it is."""
        with pytest.raises(ToolError, match=f"not text but {content_type}, {len(body)} bytes"):
            page_text(FetchedPage("https://a.test/", 200, content_type, body), float("inf"))
