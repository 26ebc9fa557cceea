"""Parse server-sent events as they arrive: bytes in, events out.

Lines end in CR, LF or CRLF, a blank line ends an event, and chunks may be split anywhere, even
inside a character. The parser keeps at most one event, whose size is bounded.

Caution: the standard drops an event that the end of the stream cuts off. Agents leave out the last
blank line, so `finish` returns that event as not `whole` and the reader decides.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

import msgspec

# An event of our own server: the maximum size of a task, and some more.
FOLLOWED_CHARACTERS_MAX: Final = 64 * 1024 * 1024

_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class EventTooLong(ValueError):
    """An event is longer than the limit."""


class SseEvent(msgspec.Struct, frozen=True):
    data: str
    name: str = ""  # the field `event`; empty if the event has none
    whole: bool = True  # False: the stream ended inside the event


class SseParser:
    """Parses one stream. `characters_max` limits an event with all its lines.

    `last_id` is the Last-SseEvent-ID that continues after the last returned event.
    """

    def __init__(self, characters_max: int) -> None:
        self.last_id = ""
        self._characters_max = characters_max
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._line: list[str] = []  # the pieces of an unfinished line
        self._after_cr = False
        self._data: list[str] = []
        self._name = ""
        self._id = ""
        self._characters = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that this chunk completes."""
        return self._split(self._decoder.decode(chunk))

    def finish(self) -> list[SseEvent]:
        """Return the remaining events at the end of the stream; the last may not be whole."""
        events = self._split(self._decoder.decode(b"", final=True))
        rest = "".join(self._line)
        self._take_line(rest)
        if self._data or self._name or (rest and not rest.startswith(":")):
            events.append(SseEvent("\n".join(self._data), self._name, whole=False))
        return events

    def _split(self, text: str) -> list[SseEvent]:
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        *ended, rest = _LINE_END.split(text)
        events = []
        for piece in ended:
            self._keep(piece)
            line = "".join(self._line)
            self._line = []
            if not line:
                events += self._ended()
            elif not self._take_line(line):
                self._characters -= len(line)
        self._keep(rest)
        if text:
            self._after_cr = text.endswith("\r")
        return events

    def _keep(self, piece: str) -> None:
        if piece:
            self._line.append(piece)
            self._characters += len(piece)
            if self._characters > self._characters_max:
                raise EventTooLong

    def _take_line(self, line: str) -> bool:
        """Add a line to the event. Return whether the line had a meaning."""
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id":
            self._id = value
        return field in ("data", "event")

    def _ended(self) -> list[SseEvent]:
        events = [SseEvent("\n".join(self._data), self._name)] if self._data else []
        self.last_id = self._id
        self._data, self._name, self._characters = [], "", 0
        return events


class Follower:
    """Follows one stream over several connections and returns each event once.

    If events have ids, a new connection continues after `last_id`; otherwise it repeats everything,
    and events that were returned before are skipped.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self._given = 0
        self.connected()

    def connected(self) -> None:
        """Start over with the data of a new connection."""
        self._parser = SseParser(FOLLOWED_CHARACTERS_MAX)
        self._known = 0 if self.last_id else self._given

    def feed(self, chunk: bytes) -> list[SseEvent]:
        events = self._parser.feed(chunk)
        self.last_id = self._parser.last_id or self.last_id
        new = events[self._known :]
        self._known = max(0, self._known - len(events))
        self._given += len(new)
        return new
