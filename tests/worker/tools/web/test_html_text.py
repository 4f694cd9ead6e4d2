"""Web pages as text for a model."""

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
    """Conversion of pages to text."""

    def convert(self, html: str) -> str:
        return html_text(html, "https://a.test/x/y.html", float("inf"))

    def test_page_structure_is_kept(self) -> None:
        """Headings, lists, links, tables and code are kept, and scripts, styles and drawings are removed."""
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
    def test_malformed_pages_keep_their_visible_text(self, html: str, text: str) -> None:
        """Fragments, unclosed tags, stray tags and long texts lose no visible text."""
        assert self.convert(html) == text

    @pytest.mark.parametrize(
        ("html", "text", "left_out"),
        [
            ("<title>T</title><nav>Menu</nav><main><h1>A</h1>b</main><footer>End</footer>", "T\n\n# A\n\nb", 11),
            ("<nav>Menu</nav><main>a<article>b</article></main>", "a\n\nb", 6),
            ("<p>Menu</p><article>one one</article><p>Ad</p><article>two two</article>", "one one\n\ntwo two", 10),
            ("<p>Menu</p><article>one<article>reply</article>two</article>", "one\n\nreply\n\ntwo", 6),
            ("<nav>Menu</nav><main>never closed<p>b", "never closed\n\nb", 6),
            ("<nav>Menu</nav></main><main>a</main></main>", "a", 6),
        ],
    )
    def test_main_content_is_preferred(self, html: str, text: str, left_out: int) -> None:
        """The title and the main content are shown. A note counts the other characters, which `whole_page` includes."""
        note = f"[{left_out} characters outside the main content left out: set whole_page]"
        assert self.convert(html) == f"{text}\n\n{note}"
        whole = html_text(html, "https://a.test/", float("inf"), whole_page=True)
        assert len(whole) == len(text) + left_out

    @pytest.mark.parametrize(
        ("html", "text"),
        [
            ("<p>The page is loaded by a script.</p><main><div></div></main>", "The page is loaded by a script."),
            ("<p>The text itself is here</p><article>Teaser</article>", "The text itself is here\n\nTeaser"),
            ("<title>T</title><main>all</main>", "T\n\nall"),
            ("<template><main>no</main></template><p>yes", "yes"),
        ],
    )
    def test_empty_main_and_short_articles_keep_the_page(self, html: str, text: str) -> None:
        """If the main element is empty or the articles are short, the complete page is shown without a note."""
        assert self.convert(html) == text

    @pytest.mark.parametrize(
        "piece",
        [
            *("<div>", "<", "<a ", "<!--", "&", "<!x", "<?", "</", "<a b='", "<ul><li>", "<script></", "[]("),
            *("<main>", "<article>", "</article>", "<title>x</title>"),
        ],
    )
    def test_hostile_pages_stop_at_the_deadline(self, piece: str) -> None:
        """After the deadline, the part that was read is converted."""
        assert len(html_text(piece * 200_000, "https://a.test", 0.0)) < 200
        self.convert(piece * 2_000)

    def test_bracketed_text_is_converted_in_linear_time(self) -> None:
        """Half a million sequences of brackets stay unchanged."""
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
    def test_links_without_visible_text_are_removed(self, html: str, text: str) -> None:
        """A link without text is removed. A link with a text or with the description of an image is kept."""
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
    def test_text_is_decoded_by_its_declared_charset(self, content_type: str, body: bytes, text: str) -> None:
        """Text with an unknown charset is decoded as UTF-8, and only HTML is converted."""
        assert page_text(FetchedPage("https://a.test/", 200, content_type, body), float("inf")) == text

    @pytest.mark.parametrize(("content_type", "body"), [("image/png", b"x"), ("application/pdf", b"%PDF\0\0")])
    def test_binary_content_is_an_error(self, content_type: str, body: bytes) -> None:
        """The error for content that is not text gives the content type and the size."""
        with pytest.raises(ToolError, match=f"not text but {content_type}, {len(body)} bytes"):
            page_text(FetchedPage("https://a.test/", 200, content_type, body), float("inf"))
