from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.schema.sse import EventTooLong, Follower, SseEvent, SseParser


def events_of(*chunks: bytes, characters_max: int = 1000) -> list[SseEvent]:
    parser = SseParser(characters_max)
    fed = [event for chunk in chunks for event in parser.feed(chunk)]
    return fed + parser.finish()


STREAM = (
    '\ufeff: hello\r\n\r\nevent: start\rdata: {"a":\rdata:1}\r\rid: 7\ndata: grüße 😀\n\n'
    "retry: 5\r\n\r\ndata\r\n\r\ndata:  two spaces\r\ndata:three\r\n\r\n"
).encode()
EXPECTED = [
    SseEvent('{"a":\n1}', "start"),
    SseEvent("grüße 😀"),
    SseEvent(""),
    SseEvent(" two spaces\nthree"),
]


def test_a_stream_gives_its_events() -> None:
    assert events_of(STREAM) == EXPECTED


@pytest.mark.parametrize("size", range(1, 8))
def test_chunks_may_be_cut_anywhere(size: int) -> None:
    cut = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert events_of(*cut) == EXPECTED


@given(st.lists(st.integers(0, len(STREAM))))
def test_chunks_may_be_cut_anywhere_at_random(places: list[int]) -> None:
    ends = [0, *sorted(places), len(STREAM)]
    assert events_of(*(STREAM[a:b] for a, b in itertools.pairwise(ends))) == EXPECTED


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    parser = SseParser(1000)
    assert parser.feed(b"data: 1\r\n") == []
    assert parser.feed(b"\r") == [SseEvent("1")]
    assert parser.feed(b"\ndata: 2\n\n") == [SseEvent("2")]
    assert parser.finish() == []


def test_a_name_is_only_for_its_own_event() -> None:
    assert events_of(b"event: a\ndata: 1\n\ndata: 2\n\n") == [SseEvent("1", "a"), SseEvent("2")]


def test_a_name_without_data_is_no_event() -> None:
    assert events_of(b"event: a\n\ndata: 1\n\n") == [SseEvent("1")]


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    text = "\ufeffdata: 1\n\n\ufeffdata: 2\n\n"
    assert events_of(text.encode()) == [SseEvent("1")]


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert events_of(b"data: a\xffb\n\n") == [SseEvent("a\ufffdb")]


@pytest.mark.parametrize(
    ("rest", "left"),
    [
        (b"data: 2", [SseEvent("2", whole=False)]),
        (b"data: 2\n", [SseEvent("2", whole=False)]),
        (b"event: end\ndata: 2\nda", [SseEvent("2", "end", whole=False)]),
        (b"event: end\n", [SseEvent("", "end", whole=False)]),
        (b"dat", [SseEvent("", whole=False)]),
        (b"data: \xf0\x9f", [SseEvent("\ufffd", whole=False)]),
        (b": a comm", []),
        (b"", []),
    ],
)
def test_the_end_tells_what_it_has_cut(rest: bytes, left: list[SseEvent]) -> None:
    assert events_of(b"data: 1\n\n" + rest) == [SseEvent("1"), *left]


@pytest.mark.parametrize(
    "stream",
    [b"data: " + b"x" * 100, b"data: 1234567890\n" * 7, b"event: 123456789\n" * 7, b"x" * 101],
)
def test_an_event_is_bounded(stream: bytes) -> None:
    with pytest.raises(EventTooLong):
        events_of(stream, characters_max=100)
    with pytest.raises(EventTooLong):
        events_of(*(bytes([one]) for one in stream), characters_max=100)


def test_a_stream_is_not_bounded_by_the_bound_of_an_event() -> None:
    stream = b": a comment\ndata: 123456789\n\n" * 100 + b": a comment\n" * 100
    assert len(events_of(stream, characters_max=40)) == 100


# --- over several connections --------------------------------------------------------------------


def test_the_last_id_is_that_of_what_has_been_handed_out() -> None:
    follower = Follower()
    assert follower.feed(b"id: 4\n\n") == []
    assert follower.last_id == "4"
    assert follower.feed(b"id: 5\ndata: a\n\nid: 6\ndata") == [SseEvent("a")]
    assert follower.last_id == "5"
    follower.connected()
    assert follower.feed(b": hello\n\n") == []
    assert follower.last_id == "5"
    assert follower.feed(b"id: 6\ndata: b\n\n") == [SseEvent("b")]


@given(st.lists(st.integers(0, 5), max_size=6))
def test_without_ids_what_was_given_is_passed_over(lengths: list[int]) -> None:
    """Each connection gives as many events as it says, from the first on."""
    follower, given_out = Follower(), []
    for length in lengths:
        follower.connected()
        for number in range(length):
            given_out += [event.data for event in follower.feed(b"data: %d\n\n" % number)]
    assert given_out == [str(number) for number in range(max(lengths, default=0))]
