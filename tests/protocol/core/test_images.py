"""Images: formats, sizes and limits, and prompts of texts and images."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.images import image_size, part_text
from orch_protocol.core.messages import (
    MAX_ENCODED,
    Image,
    Message,
    Text,
    assistant,
    check_images,
    place_images,
    prompt_of,
    text_of,
    user,
)
from pictures import GIF, JPEG, WEBP_ALPHA, WEBP_LOSSLESS, WEBP_LOSSY, png

A = Image.from_bytes(png(640, 480), "a.png")
B = Image.from_bytes(GIF)


class TestFormats:
    """Formats and sizes, which are read from the first bytes."""

    @pytest.mark.parametrize(
        ("data", "media_type"),
        [
            (png(30, 20), "image/png"),
            (GIF, "image/gif"),
            (JPEG, "image/jpeg"),
            (WEBP_ALPHA, "image/webp"),
            (WEBP_LOSSLESS, "image/webp"),
            (WEBP_LOSSY, "image/webp"),
        ],
    )
    def test_media_type_and_size_are_read_from_the_content(self, data: bytes, media_type: str) -> None:
        """The file name does not determine the media type."""
        image = Image.from_bytes(data, "picture.txt")
        assert (image.media_type, image.size) == (media_type, (30, 20))
        assert base64.b64decode(image.data) == data

    @given(st.sampled_from([png(3, 2)[:40], GIF, JPEG, WEBP_ALPHA, WEBP_LOSSLESS, WEBP_LOSSY]), st.integers(0, 60_030))
    def test_size_of_a_truncated_file_never_raises(self, data: bytes, end: int) -> None:
        """The size is known, or it is (0, 0)."""
        size = image_size(base64.b64encode(data[:end]).decode())
        assert size == (0, 0) or all(size)

    @given(st.text())
    def test_size_of_arbitrary_text_never_raises(self, text: str) -> None:
        """The size of text that is not an image is (0, 0), even if the text is not base64."""
        assert image_size(text) == (0, 0)


class TestErrors:
    """Images and prompts that cannot be sent."""

    def test_missing_file(self, tmp_path: Path) -> None:
        """The error for a missing file names the file and the reason."""
        with pytest.raises(ConfigError, match=r"cannot read the image '.*a\.png': No such file"):
            Image.open(tmp_path / "a.png")

    def test_other_format(self, tmp_path: Path) -> None:
        """The error for another format names the accepted formats."""
        (tmp_path / "a.svg").write_text("<svg>")
        with pytest.raises(ConfigError, match=r"image 'a\.svg' is not an image .* PNG, JPEG, GIF or WebP"):
            Image.open(tmp_path / "a.svg")

    def test_size_limit_counts_base64(self) -> None:
        """An image may have exactly 5 MiB in base64, because providers count the encoded size."""
        room = MAX_ENCODED * 3 // 4 - len(png(1, 1))
        assert len(Image.from_bytes(png(1, 1, room)).data) == MAX_ENCODED
        with pytest.raises(ConfigError, match=r"'b\.png' has 3,932,161 bytes: .* at most 3,932,160 bytes.* 5 MiB"):
            Image.from_bytes(png(1, 1, room + 1), "b.png")

    def test_too_many_pixels(self) -> None:
        """An image that is wider than 8000 pixels is refused, because providers reject it."""
        assert Image.from_bytes(png(8000, 1)).size == (8000, 1)
        with pytest.raises(ConfigError, match=r"'wide\.png' has 8001x1 pixels: at most 8000 are allowed"):
            Image.from_bytes(png(8001, 1), "wide.png")

    @pytest.mark.parametrize("data", [png(30, 20), GIF, JPEG, WEBP_ALPHA])
    def test_line_break_after_the_end_is_accepted(self, data: bytes) -> None:
        assert Image.from_bytes(data + b"\n").size == Image.from_bytes(data).size

    @pytest.mark.parametrize("data", [png(30, 20), GIF, JPEG, WEBP_ALPHA])
    def test_truncated_file_is_refused(self, data: bytes) -> None:
        """Providers reject truncated images, and the conversation would contain them from then on."""
        for end in (12, len(data) - 8):
            with pytest.raises(ConfigError, match=r"image 'a\.png' is truncated or damaged: save it again"):
                Image.from_bytes(data[:end], "a.png")

    def test_arguments_of_the_wrong_type_are_refused(self) -> None:
        """The error names the function to use instead."""
        with pytest.raises(ConfigError, match=r"open needs the path of a file; got bytes\. .* Image\.from_bytes"):
            Image.open(png(3, 2))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"from_bytes needs the bytes of a file; got str\. .* Image\.open"):
            Image.from_bytes("a.png")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"cannot read the image 'a\\x00': embedded null byte"):
            Image.open("a\0")

    @pytest.mark.parametrize(
        ("image", "error"),
        [
            (Image("image/png", "?"), "not base64"),
            (Image("image/png", base64.b64encode(b"<svg>").decode()), "is not an image"),
            (
                Image("image/jpeg", A.data, "a.jpg"),
                r"'a\.jpg' has the media type 'image/jpeg', but its data is image/png",
            ),
        ],
    )
    def test_content_that_does_not_match_is_refused(self, image: Image, error: str) -> None:
        """`check_images` refuses invalid data in images that were not created by `open`."""
        with pytest.raises(ConfigError, match=error):
            check_images([A, image])

    def test_images_together_have_a_limit(self) -> None:
        """The total size of images is limited, because providers limit the size of requests."""
        large = Image.from_bytes(png(1, 1, 3_900_000))
        check_images([large] * 4)
        with pytest.raises(ConfigError, match="5 images are too large together"):
            check_images([large] * 5)

    @pytest.mark.parametrize("prompt", [5, None, b"x", ["a", 5], [Path("a.png")]])
    def test_prompt_of_other_types_is_refused(self, prompt: Any) -> None:
        """The error for a prompt of another type names the accepted types and the given type."""
        with pytest.raises(ConfigError, match=r"must be text, or a list of texts and orch\.Image; got "):
            prompt_of(prompt)

    @pytest.mark.parametrize("text", [5, None, ["a"]])
    def test_assistant_message_of_other_types_is_refused(self, text: Any) -> None:
        """Only user messages can be made from a list."""
        with pytest.raises(ConfigError, match="text of an assistant message must be a string; got "):
            assistant(text)


class TestText:
    """The text that represents an image."""

    @pytest.mark.parametrize(
        ("image", "text"),
        [
            (A, "[image: a.png, 640x480]"),
            (B, "[image: image/gif, 30x20]"),
            (Image("image/png", ""), "[image: image/png]"),
            (Image("image/png", "", "a]\n[b"), "[image: a) (b]"),
        ],
    )
    def test_text_of_an_image(self, image: Image, text: str) -> None:
        """The text contains name and size, if they are known, in one pair of brackets on one line."""
        assert image.text == part_text(msgspec.to_builtins(image)) == text

    def test_representation_does_not_contain_the_data(self) -> None:
        """`repr` shows only the length of the data, because logs would fill with megabytes."""
        assert repr(Image("image/png", "AAAA", "a.png")) == "Image('image/png', <4 characters>, 'a.png')"

    def test_text_of_a_message_contains_its_images(self) -> None:
        """The texts of images are at the places of the images."""
        assert text_of(user(["What is", A, "?"])) == "What is\n\n[image: a.png, 640x480]\n\n?"

    def test_image_without_a_name_is_encoded_without_the_key(self) -> None:
        """The line of such an image in a transcript has no key `name`."""
        assert msgspec.json.encode(B) == b'{"type":"image","media_type":"image/gif","data":"%b"}' % B.data.encode()


class TestPrompts:
    """Prompts of texts and images."""

    def test_user_message_of_texts_and_images(self) -> None:
        """A message contains the texts and images in the order of the prompt."""
        assert user("hi") == Message("user", (Text("hi"),))
        assert user(["What is this?", A]).content == (Text("What is this?"), A)
        assert user([A, "or", B, "?"]).content == (A, Text("or"), B, Text("?"))
        assert assistant("hi").content == (Text("hi"),)

    @given(st.lists(st.sampled_from(["one", "two\nlines", " three ", A, B]), min_size=1))
    def test_images_return_to_their_places(self, parts: list[str | Image]) -> None:
        """`place_images` reverses `prompt_of`. Neighboring texts become one text."""
        text, images = prompt_of(parts)
        content = place_images(text, images)
        assert [block for block in content if isinstance(block, Image)] == list(images)
        assert text_of(Message("user", content)) == text
        assert all(isinstance(one, Image) or isinstance(two, Image) for one, two in pairwise(content))

    def test_image_without_its_text_is_at_the_end(self) -> None:
        """If the prompt no longer contains the text of an image, for example after a hook, the image is at the end."""
        assert place_images("Compare them.", (A, B)) == (Text("Compare them."), A, B)
        assert place_images(f"With {B.text}: go", (A, B)) == (Text("With "), B, Text(": go"), A)
