"""A conversation on a store, spoken in short sentences: messages in, stops, settings, usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.core.errors import FairlaneError
from fairlane.core.model import Submission, Task
from fairlane.core.sessions import Session, SessionSettings
from fairlane.engine.commands import (
    IdempotencyKey,
    SetSession,
    SetUsage,
    StoppedRuns,
    StopSession,
    Submit,
)
from fairlane.schema.sessions import SendMessage
from fairlane.services.sessions import message_submission

if TYPE_CHECKING:
    from tests.store.scheduler import Scheduler

WINDOW_MS = 800
WINDOW_MAX_MS = 5000


class Chat:
    def __init__(self, scheduler: Scheduler, key: str = "chat") -> None:
        self.scheduler = scheduler
        self.key = key

    # ------------------------------------------------------------ say

    def message(self, name: str, text: str | None = None, **said: Any) -> Submission:
        """What `name` says, by default its own name; a message of the handler `work`."""
        said.setdefault("sender", "ann")
        text = name if text is None else text
        request = SendMessage(key=self.key, text=text, handler="work", **said)
        return message_submission(request, task_id=name)

    def try_say(
        self, name: str, text: str | None = None, *, key: IdempotencyKey | None = None, **said: Any
    ) -> Task | FairlaneError:
        answers = self.scheduler.ask(Submit([self.message(name, text, **said)], key))
        answer: Task | FairlaneError = answers[0]
        return answer

    def say(self, name: str, text: str | None = None, **said: Any) -> Task:
        answer = self.try_say(name, text, **said)
        assert isinstance(answer, Task), answer
        return answer

    def say_at_once(self, *names: str, **said: Any) -> None:
        """Messages that nothing is joined to, one after another."""
        for name in names:
            assert self.say(name, debounce_ms=0, **said).id == name

    def refused(self, name: str, **said: Any) -> FairlaneError:
        answer = self.try_say(name, **said)
        assert isinstance(answer, FairlaneError), answer
        return answer

    # ------------------------------------------------------------ stop, tune

    def stop(self) -> StoppedRuns:
        return self._stopped(StopSession(self.key, only_oldest=True))

    def stop_all(self) -> StoppedRuns:
        return self._stopped(StopSession(self.key))

    def reset(self) -> StoppedRuns:
        return self._stopped(StopSession(self.key, reset=True))

    def _stopped(self, request: StopSession) -> StoppedRuns:
        stopped: StoppedRuns = self.scheduler.ask(request)
        return stopped

    def tune(self, *unset: str, **settings: Any) -> Session:
        request = SetSession(self.key, SessionSettings(**settings), frozenset(unset))
        session: Session = self.scheduler.ask(request)
        return session

    def use(self, tokens: int, context_window: int = 100) -> Session:
        session: Session = self.scheduler.ask(SetUsage(self.key, tokens, context_window))
        return session

    # ------------------------------------------------------------ look

    def row(self) -> Session | None:
        rows = self.scheduler.reader.run("session_view", key=self.key)
        return Session(*rows[0]) if rows else None

    def counts(self) -> tuple[int, int, int]:
        """Who has the turn, who waits for it, who may still grow."""
        row = self.row() or Session(self.key)
        return row.holders, row.waiting, row.debouncing

    def text(self, name: str) -> str:
        text: str = self.scheduler.view(name).body["params"]["message"]
        return text

    def error(self, name: str) -> str | None:
        return self.scheduler.view(name).error
