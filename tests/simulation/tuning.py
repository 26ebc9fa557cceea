"""An operator who cannot leave the policy alone: ceilings, weights, pauses, strategies, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from fairlane.core.policy import Policy

LANES: Final = ("browser", "main", "queue", "side")

BEGINNING: Final[dict[str, Any]] = {
    "lanes": {
        "browser": {
            "maxInflight": 2,
            "maxPerAgentInflight": 2,
            "maxQueueSize": 12,
            "maxPerAgent": 6,
        },
        "main": {"maxInflight": 3, "maxQueueSize": 20},
        "queue": {"maxInflight": 1, "maxQueueSize": 8},
        "side": {"maxInflight": 1, "maxQueueSize": 8, "maxPerAgent": 4, "agingMs": 100},
    },
    "kinds": {
        "action": {"deadlineSec": 15},
        "handler": {"maxAttempts": 3, "backoffMs": 400, "maxBackoffMs": 3000},
    },
    "sessions": {"cap": 3, "debounceMs": 500, "debounceMaxMs": 1500},
    "retention": {"resultTTLSec": 6},
}
EVERYTHING_OPEN: Final[dict[str, Any]] = {
    "enabled": True,
    "maxInflight": None,
    "lanes": {lane: {"maxInflight": 5, "paused": False} for lane in LANES},
}


class Operator:
    """Makes documents for `SetPolicy`. Some of them are refused, which has to change nothing."""

    def __init__(self, rng: Random, agents: Sequence[str]) -> None:
        self._rng = rng
        self._agents = agents
        self._kinds = (
            *(self._lane, self._lane, self._lane, self._lane),
            *(self._agent, self._overall, self._kind, self._sessions),
        )

    def document(self, policy: Policy) -> dict[str, Any]:
        shut = not policy.enabled or any(policy.lanes[lane].paused for lane in LANES)
        if shut and self._rng.random() < 0.6:
            return EVERYTHING_OPEN
        make = self._rng.choice(self._kinds)
        return make()

    def _lane(self) -> dict[str, Any]:
        rng, chance = self._rng, self._rng.random()
        change: dict[str, Any] = {"maxInflight": rng.randrange(1, 4)}
        if chance < 0.20:
            strategy = rng.choice(("fair-fifo", "priority"))
            change = {"strategy": strategy, "maxPerAgentInflight": None}
        elif chance < 0.30:
            change = {"maxPerAgentInflight": rng.choice((None, 1, 2, 3))}  # not in every strategy
        elif chance < 0.42:
            change = {"paused": rng.random() < 0.5}
        elif chance < 0.48:
            change = {"maxQueueSize": rng.randrange(5, 15), "maxPerAgent": rng.choice((None, 5))}
        elif chance < 0.68:
            change = {"agingMs": rng.choice((None, 30, 2000))}
        elif chance < 0.71:
            change = {"maxInflight": -1}
        return {"lanes": {rng.choice(LANES): change}}

    def _agent(self) -> dict[str, Any]:
        rng = self._rng
        weight, most = rng.choice((0.5, 1, 2, 3)), rng.choice((None, None, 1, 2, 4))
        return {"agents": {rng.choice(self._agents): {"weight": weight, "maxInflight": most}}}

    def _overall(self) -> dict[str, Any]:
        rng, chance = self._rng, self._rng.random()
        if chance < 0.6:
            return {"maxInflight": rng.choice((None, None, 2, 4, 7))}
        if chance < 0.8:
            return {"retention": {"resultTTLSec": rng.choice((3, 6, 12))}}
        return {"enabled": False} if chance < 0.95 else {"lanez": {}}

    def _sessions(self) -> dict[str, Any]:
        rng = self._rng
        change = {
            "mode": rng.choice(("queue", "queue", "collect", "interrupt")),
            "cap": rng.randrange(1, 6),
            "drop": rng.choice(("old", "new")),
            "debounceMs": rng.choice((0, 500)),
            "maxConcurrent": rng.choice((1, 1, 2, 3)),
            "throttleAt": rng.choice((0.6, 0.3)),
        }
        return {"sessions": {name: change[name] for name in change if rng.random() < 0.4}}

    def _kind(self) -> dict[str, Any]:
        rng = self._rng
        change = {
            "maxAttempts": rng.randrange(1, 4),
            "backoffMs": rng.choice((0, 300, 900)),
            "jitter": rng.choice((0, 0.25)),
            "whenSpent": rng.choice(("fail", "park")),
        }
        return {"kinds": {rng.choice(("action", "handler")): change}}
