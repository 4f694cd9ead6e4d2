"""Frames: numbered, acknowledged, sent again and delivered once. Hostile bytes raise only ProtocolError."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from orch_protocol.core.errors import ErrorInfo, MessageTooLargeError, ProtocolError, StoreError
from orch_protocol.core.messages import Reply
from orch_protocol.wire.frames import MAX_BODY, MAX_SPILL, RESEND_SECONDS, Frame, FrameChannel, encode_body
from orch_protocol.wire.worker_messages import EmptyBody, Ping, Query, TurnFinished


def unreadable(received: tuple[Frame, Struct] | None, id: str) -> str:
    """Return why the body of the frame `id` could not be read."""
    assert received is not None
    frame, body = received
    assert frame.id == id
    assert isinstance(body, ErrorInfo)
    return body.message


@pytest.fixture
def ends(tmp_path: Path) -> tuple[FrameChannel, FrameChannel]:
    return FrameChannel(3, tmp_path / "spool"), FrameChannel(3, tmp_path / "spool")


def test_frame_round_trips(ends: tuple[FrameChannel, FrameChannel]) -> None:
    """A decoded frame has the kind, the correlation id and the body of the message."""
    root, worker = ends
    received = worker.decode(root.encode("query", Query("why?", 2.5), "q1", now=0.0))
    assert received is not None
    frame, body = received
    assert (frame.kind, frame.id, frame.incarnation, frame.seq) == ("query", "q1", 3, 1)
    assert body == Query("why?", 2.5)


def test_duplicate_frame_is_delivered_once_and_acknowledged_again(ends: tuple[FrameChannel, FrameChannel]) -> None:
    """A query that is sent again does not run twice, and its sender gets an acknowledgement."""
    root, worker = ends
    data = root.encode("query", Query("once"), "q", now=0.0)
    assert worker.decode(data) is not None
    worker.encode("ack", EmptyBody())
    assert worker.decode(data) is None
    assert worker.owes_ack
    assert root.decode(worker.encode("ack", EmptyBody())) is None
    assert root.unacked == 0


def test_frames_behind_a_lost_one_wait_for_it(ends: tuple[FrameChannel, FrameChannel]) -> None:
    """Frames after a lost frame are delivered in order after the lost frame was sent again."""
    root, worker = ends
    first = root.encode("query", Query("1"), now=0.0)
    second = root.encode("query", Query("2"), now=0.0)
    assert worker.decode(second) is None
    assert root.overdue(RESEND_SECONDS / 2) == []
    assert [worker.decode(data)[1].prompt for data in root.overdue(RESEND_SECONDS)] == ["1", "2"]  # type: ignore[index,attr-defined]
    assert worker.decode(first) is None


@given(seed=st.integers(0, 2**32))
def test_every_frame_is_delivered_exactly_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Although a third of all frames is lost, every frame is delivered exactly once and in order."""
    luck, spool = random.Random(seed), tmp_path_factory.getbasetemp()
    one, other = FrameChannel(1, spool), FrameChannel(1, spool)
    heard: list[str] = []
    now = 0.0

    def carry(data: bytes) -> None:
        if luck.random() > 0.33 and (received := other.decode(data)) is not None:
            heard.append(received[1].prompt)  # type: ignore[attr-defined]

    for number in range(20):
        carry(one.encode("query", Query(str(number)), now=now))
        if luck.random() < 0.3:
            one.decode(other.encode("ack", EmptyBody()))
    for _ in range(200):
        now += RESEND_SECONDS
        for data in one.overdue(now):
            carry(data)
        if luck.random() > 0.33:
            one.decode(other.encode("ack", EmptyBody()))
        if not one.unacked:
            break
    assert heard == [str(number) for number in range(20)]
    assert one.unacked == 0


def test_unsequenced_frames_are_not_resent(ends: tuple[FrameChannel, FrameChannel]) -> None:
    """A ping has no sequence number, so it does not wait for an acknowledgement."""
    root, worker = ends
    assert worker.decode(root.encode("ping", Ping(b"x"))) is not None
    assert root.unacked == 0
    assert root.overdue(1e9) == []


def test_large_body_is_spooled_and_removed_after_reading(
    ends: tuple[FrameChannel, FrameChannel], tmp_path: Path
) -> None:
    """A prompt of ten megabytes needs a small frame and a spool file, which the receiver deletes."""
    root, worker = ends
    data = root.encode("query", Query("x" * 10_000_000), now=0.0)
    assert len(data) < 1000
    received = worker.decode(data)
    assert received is not None
    assert len(received[1].prompt) == 10_000_000  # type: ignore[attr-defined]
    assert list((tmp_path / "spool").iterdir()) == []


def test_body_at_the_limit_stays_in_the_frame(ends: tuple[FrameChannel, FrameChannel]) -> None:
    """A body with exactly MAX_BODY encoded bytes is in the frame. One more byte needs a spool file."""
    root, _ = ends
    overhead = len(encode_body(Ping(b"x" * 100_000))) - 100_000
    assert len(root.encode("ping", Ping(b"x" * (MAX_BODY - overhead)))) > MAX_BODY
    assert len(root.encode("ping", Ping(b"x" * (MAX_BODY - overhead + 1)))) < 1000


def test_oversized_body_is_refused(ends: tuple[FrameChannel, FrameChannel], monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that exceeds the maximum is an error, and no frame waits for an acknowledgement."""
    monkeypatch.setattr("orch_protocol.wire.frames.MAX_SPILL", 2 * MAX_BODY)
    with pytest.raises(MessageTooLargeError, match=r"message 'query' has \d+ bytes, but the maximum is 2097152"):
        ends[0].encode("query", Query("x" * (3 * MAX_BODY)), now=0.0)
    assert ends[0].unacked == 0


def test_changed_or_missing_spool_file_is_an_error(ends: tuple[FrameChannel, FrameChannel], tmp_path: Path) -> None:
    """A changed or missing spool file is reported once. The same frame is not delivered again."""
    root, worker = ends
    for number, why in enumerate(("differs from the sent message", "cannot read the message"), 1):
        data = root.encode("query", Query("x" * (MAX_BODY + 1)), f"q{number}", now=0.0)
        file = next((tmp_path / "spool").iterdir())
        if number == 1:
            file.write_bytes(file.read_bytes()[:-1] + b"y")
        else:
            file.unlink()
        assert why in unreadable(worker.decode(data), f"q{number}")
        assert worker.decode(data) is None


def test_unwritable_spool_file_is_an_error(ends: tuple[FrameChannel, FrameChannel], tmp_path: Path) -> None:
    """If the spool file cannot be written, no frame waits for an acknowledgement."""
    (tmp_path / "spool").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot write the message 'query' \(\d+ bytes\) to .*spool"):
        ends[0].encode("query", Query("x" * (MAX_BODY + 1)), now=0.0)
    assert ends[0].unacked == 0


def test_spool_reference_cannot_leave_its_folder(ends: tuple[FrameChannel, FrameChannel]) -> None:
    """A reference to a path outside the spool folder is refused."""
    body = msgspec.msgpack.encode(["../../etc/passwd", 1, "0"])
    data = msgspec.msgpack.encode(Frame("query", "", 3, 0, 0, True, msgspec.Raw(body)))
    assert "is outside the spool" in unreadable(ends[1].decode(data), "")


@pytest.mark.parametrize("name", ["pipe", "link", "folder", "long", "nul\0", "", "."])
def test_spool_reference_to_a_special_file_is_an_error(
    name: str, ends: tuple[FrameChannel, FrameChannel], tmp_path: Path
) -> None:
    """A FIFO does not block, links are not followed, and a file that is longer than announced is refused."""
    spool = tmp_path / "spool"
    spool.mkdir()
    (tmp_path / "secret").write_bytes(b"\x92\xa1x\xc0")
    os.mkfifo(spool / "pipe")
    (spool / "link").symlink_to(tmp_path / "secret")
    (spool / "folder").mkdir()
    with (spool / "long").open("wb") as file:
        file.truncate(1 << 40)
    digest = hashlib.sha256(b"\x92\xa1x\xc0").hexdigest()
    body = msgspec.msgpack.encode([name, 4, digest])
    data = msgspec.msgpack.encode(Frame("query", "q", 3, 0, 0, True, msgspec.Raw(body)))
    assert unreadable(ends[1].decode(data), "q")
    assert (tmp_path / "secret").exists()


@pytest.mark.parametrize("size", [-1, MAX_SPILL + 1, 1 << 62])
def test_spool_reference_of_impossible_size_is_an_error(size: int, ends: tuple[FrameChannel, FrameChannel]) -> None:
    """A reference with a negative or too large size is refused because of the size."""
    body = msgspec.msgpack.encode(["body", size, "0"])
    data = msgspec.msgpack.encode(Frame("query", "q", 3, 0, 0, True, msgspec.Raw(body)))
    assert "but the maximum is" in unreadable(ends[1].decode(data), "q")


def test_frame_of_another_incarnation_is_refused(ends: tuple[FrameChannel, FrameChannel], tmp_path: Path) -> None:
    """A frame of an earlier process of the agent raises ProtocolError."""
    late = FrameChannel(2, tmp_path).encode("ping", Ping())
    with pytest.raises(ProtocolError, match="incarnation 2, expected 3"):
        ends[0].decode(late)


@given(data=st.binary(max_size=300))
def test_random_bytes_raise_protocol_errors_only(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Decoding random bytes raises ProtocolError or no exception."""
    try:
        FrameChannel(1, tmp_path_factory.getbasetemp()).decode(data)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 1_000_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc1",
        msgspec.msgpack.encode(["nonsense", "", 1, 0, 0, False, {}]),
    ],
    ids=["depth", "array", "map", "bin", "reserved", "kind"],
)
def test_hostile_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    """Deep nesting, wrong lengths and wrong types raise ProtocolError."""
    with pytest.raises(ProtocolError):
        FrameChannel(1, tmp_path).decode(data)


@pytest.mark.parametrize("body", [{"prompt": b"\xff\xfe"}, [[[]]]], ids=["bytes-for-text", "shape"])
def test_body_of_the_wrong_shape_is_reported_with_its_id(tmp_path: Path, body: object) -> None:
    """The error contains the id of the frame, so that the request can be answered with an error."""
    data = msgspec.msgpack.encode(["query", "q1", 1, 1, 0, False, body])
    assert "not a body of kind 'query'" in unreadable(FrameChannel(1, tmp_path).decode(data), "q1")


def test_lone_surrogates_become_replacement_characters(ends: tuple[FrameChannel, FrameChannel]) -> None:
    """Text that cannot be encoded is repaired in every string of a body."""
    root, worker = ends
    reply = Reply("a", "q", "bad \ud800 text", files_changed=("x\udfff",))
    received = worker.decode(root.encode("finished", TurnFinished(reply)))
    assert received is not None
    assert received[1].reply.text == "bad \N{REPLACEMENT CHARACTER} text"  # type: ignore[attr-defined]
