"""Conversations: one id for an agent in a session until the session is reset."""

from __future__ import annotations

import uuid

from fairlane.core import sessions


def test_the_id_is_a_uuid_that_depends_on_agent_session_and_generation() -> None:
    found = [
        sessions.conversation_id(agent, key, generation)
        for agent in ("a", "b")
        for key in ("s", "t")
        for generation in (0, 1)
    ]
    assert len(set(found)) == 8
    assert all(str(uuid.UUID(one or "")) == one for one in found)
    assert sessions.conversation_id("a", "s", 0) == found[0]


def test_there_is_none_without_a_session_and_for_cron_jobs() -> None:
    assert sessions.conversation_id("a", None, 0) is None
    assert sessions.conversation_id("a", "cron:job_1", 0) is None


def test_messages_have_their_own_media_and_metadata() -> None:
    one = {"messages": [{"id": "1"}], "media": ["m"], "metadata": {"a": 1}}
    assert sessions.messages_of(one) == [{"id": "1", "media": ["m"], "metadata": {"a": 1}}]
    two = {"messages": [{"id": "1"}, {"id": "2"}], "metadata": {"a": 1}}
    assert sessions.messages_of(two) == [{"id": "1"}, {"id": "2"}]
    assert sessions.messages_of({"messages": [{"id": "1"}]}) == [{"id": "1"}]
    assert sessions.messages_of({}) == []
