"""The plan and the queue as client methods (see `client/verbs.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fairlane.client.calling import A, Calling, given, moment, path_of


class QueueVerbs(Calling[A]):
    def plan(
        self,
        *,
        lane: str | None = None,
        now: str | datetime | None = None,
        limit: int | None = None,
    ) -> A:
        """What a lease of the lane (`queue`) would give, at `now` if that is given, and why the
        rest would have to wait. Changes nothing.
        """
        query = given(lane=lane, now=moment(now), limit=limit)
        return self.call("GET", "/scheduler/plan", query=query)

    def reclaim_leases(self) -> A:
        """Take back all leases that have run out, now; `reclaimed` are the ids of their tasks."""
        return self.call("POST", "/leases/reclaim", body={})

    def queue_add(
        self,
        *,
        id: str | None = None,  # noqa: A002 - as the field is called
        run: str | None = None,
        app: str | None = None,
        workflow: str | None = None,
        repo: str | None = None,
        priority: int | str | None = None,
        inputs: Mapping[str, Any] | None = None,
        note: str | None = None,
        agent: str | None = None,
    ) -> A:
        """Put an entry into the queue; the lowest priority goes first, 100 if none is given."""
        body = given(
            id=id,
            run_id=run,
            app_id=app,
            workflow_id=workflow,
            repo=repo,
            priority=priority,
            inputs=inputs,
            note=note,
            agent=agent,
        )
        return self.call("POST", "/queue", body=body)

    def queue_list(
        self, *, status: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> A:
        """One page, in the order of the queue; `nextCursor` is there when there are more."""
        query = given(status=status, limit=limit, cursor=cursor)
        return self.call("GET", "/queue", query=query)

    def queue_show(self, entry_id: str) -> A:
        """Return one entry of the queue."""
        return self.call("GET", path_of("queue", entry_id))

    def queue_drain(self, *, limit: int | None = None) -> A:
        """Hand over the next entries for good: who asks runs them and reports nothing."""
        return self.call("POST", "/queue/drain", body=given(limit=limit))

    def queue_import(self, document: Mapping[str, Any]) -> A:
        """Take in a whole `queue.json`, or nothing of it."""
        return self.call("POST", "/queue/import", body=document)

    def queue_policy(self) -> A:
        """The policy of the lane `queue` in the six words of a `scheduling-policy.json`."""
        return self.call("GET", "/scheduler/policy")

    def set_queue_policy(self, settings: Mapping[str, Any]) -> A:
        """Change what is given of these; the policy as it is then."""
        return self.call("PATCH", "/scheduler/policy", body=settings)
