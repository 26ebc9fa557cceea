"""Routes of sessions: messages in, stop, reset, settings, usage, and how a session stands."""

from __future__ import annotations

from typing import Any

from fairlane.core.access import Scope
from fairlane.core.errors import FairlaneError
from fairlane.core.sessions import Session
from fairlane.engine.commands import SetSession, SetUsage, Stopped, StopSession, Submit
from fairlane.engine.node import Node
from fairlane.engine.reads.views import SessionView
from fairlane.engine.verbs import ownership
from fairlane.http.messages import Answer, Request, Route, Routes, page_limit
from fairlane.http.routes.keys import idempotency_key
from fairlane.schema import messages, wire
from fairlane.schema.tasks import task_accepted
from fairlane.services.tasks import check_callback, submitter


class Sessions:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/sessions": {"GET": Route(self.list, Scope.READ)},
            "/sessions/{key}": {
                "GET": Route(self.show, Scope.READ),
                "PATCH": Route(self.change, Scope.OPERATE),
            },
            "/sessions/{key}/messages": {"POST": Route(self.message, Scope.SUBMIT)},
            "/sessions/{key}/stop": {"POST": Route(self.stop, Scope.CANCEL)},
            "/sessions/{key}/stopall": {"POST": Route(self.stop_all, Scope.CANCEL)},
            "/sessions/{key}/reset": {"POST": Route(self.reset, Scope.CANCEL)},
            "/sessions/{key}/usage": {"PUT": Route(self.usage, Scope.OPERATE)},
        }

    async def message(self, request: Request) -> Answer:
        raw = await request.body()
        key = request.path["key"]
        caller = request.caller
        made = messages.parse_message(raw, key=key, task_id=self._node.new_id(), agent=caller.agent)
        if isinstance(made, str):
            caller.require(Scope.CANCEL)
            stop = StopSession(key, only_oldest=made == "stop", agent=caller.agent)
            return await self._stop(stop)
        caller.agent_for(made.agent)
        check_callback(self._node, made.callback_url)
        once = idempotency_key(request, made.agent, raw)
        answer = (await self._node.submit(Submit([made], once, caller=submitter(request.caller))))[
            0
        ]
        if isinstance(answer, FairlaneError):
            raise answer
        shape = task_accepted(answer).to_dict()
        if once is None and answer.id != made.id:
            shape["merged"] = True
        return Answer(202, shape)

    async def stop(self, request: Request) -> Answer:
        stop = StopSession(_key(request), only_oldest=True, agent=request.caller.agent)
        return await self._stop(stop)

    async def stop_all(self, request: Request) -> Answer:
        return await self._stop(StopSession(_key(request), agent=request.caller.agent))

    async def reset(self, request: Request) -> Answer:
        stop = StopSession(_key(request), reset=True, agent=request.caller.agent)
        answer: Stopped = await self._node.writer.ask(stop)
        return Answer(200, {**_stopped(answer), "generation": answer.generation})

    async def _stop(self, stop: StopSession) -> Answer:
        return Answer(200, _stopped(await self._node.writer.ask(stop)))

    async def usage(self, request: Request) -> Answer:
        body = messages.parse_usage(await request.body())
        key = _key(request)
        agent = request.caller.agent
        await self._node.writer.ask(SetUsage(key, body.tokens, body.context_window, agent))
        return await self._shown(key, agent)

    async def change(self, request: Request) -> Answer:
        settings, unset = messages.parse_settings(await request.body())
        key = _key(request)
        agent = request.caller.agent
        session: Session = await self._node.writer.ask(SetSession(key, settings, unset, agent))
        return await self._shown(key, agent, SessionView(session, [], []))

    async def show(self, request: Request) -> Answer:
        request.query()
        return await self._shown(request.path["key"], request.caller.agent)

    async def _shown(self, key: str, agent: str | None, known: SessionView | None = None) -> Answer:
        """`known` is what to show of a session that nothing is kept of."""
        views = self._node.views
        view = await views.read(views.session, key, agent) or known
        if view is None:
            raise ownership.not_mine(key)
        policy = self._node.policy.sessions
        return Answer(200, wire.session(view.session, policy, view.turns, view.queued))

    async def list(self, request: Request) -> Answer:
        query = request.query("limit", "cursor")
        limit = page_limit(query)
        views = self._node.views
        page = await views.read(
            views.sessions, query.get("cursor", ""), request.caller.agent, limit
        )
        policy = self._node.policy.sessions
        shape: dict[str, Any] = {
            "sessions": [wire.session_line(one, policy) for one in page],
            "count": len(page),
        }
        if page.more:
            shape["nextCursor"] = page[-1].key
        return Answer(200, shape)


def _key(request: Request) -> str:
    return messages.session_key(request.path["key"])


def _stopped(answer: Stopped) -> dict[str, Any]:
    return {"stopped": answer.stopped, "drained": answer.drained}
