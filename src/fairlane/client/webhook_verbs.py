"""The verbs of webhooks, as calls of their routes (see `client/verbs.py`)."""

from __future__ import annotations

from fairlane.client.calling import A, Calling, given, path_of


class WebhookVerbs(Calling[A]):
    def deliveries(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> A:
        """One page of the webhooks that are or were owed, newest first; `task` is the id of a
        task, a batch or a cron run.
        """
        query = given(state=state, task_id=task, agent=agent, limit=limit, cursor=cursor)
        return self.call("GET", "/deliveries", query=query)

    def delivery(self, delivery_id: str) -> A:
        """One of them, with its `tries`."""
        return self.call("GET", path_of("deliveries", delivery_id))

    def redeliver(self, delivery_id: str) -> A:
        """Send it again, now and under the same id, and by the schedule if that fails."""
        return self.call("POST", path_of("deliveries", delivery_id, "/redeliver"), body={})

    def create_webhook(self, url: str, *, agent: str | None = None) -> A:
        """An endpoint with a secret of its own, which the answer shows this once."""
        return self.call("POST", "/webhooks", body=given(url=url, agent=agent))

    def webhooks(
        self, *, agent: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> A:
        """One page of the endpoints that have a secret of their own; never the secrets."""
        query = given(agent=agent, limit=limit, cursor=cursor)
        return self.call("GET", "/webhooks", query=query)

    def webhook(self, endpoint_id: str) -> A:
        return self.call("GET", path_of("webhooks", endpoint_id))

    def rotate_webhook(self, endpoint_id: str, *, overlap_seconds: int | None = None) -> A:
        """A new secret, which the answer shows this once; for a while (a day) both sign."""
        body = given(overlap_seconds=overlap_seconds)
        return self.call("POST", path_of("webhooks", endpoint_id, "/rotate"), body=body)

    def enable_webhook(self, endpoint_id: str) -> A:
        """Send to it again, after it has answered 410."""
        return self.call("POST", path_of("webhooks", endpoint_id, "/enable"), body={})

    def delete_webhook(self, endpoint_id: str) -> A:
        """What goes to its URL is signed with the common secret again."""
        return self.call("DELETE", path_of("webhooks", endpoint_id))
