"""The rules of the queue as cool-workflow spells them."""

from __future__ import annotations

import msgspec

from fairlane.compat import coolworkflow
from fairlane.core.policy import Policy


def test_a_policy_without_the_lane_of_the_queue_has_its_defaults() -> None:
    default = Policy()
    lanes = {name: lane for name, lane in default.lanes.items() if name != coolworkflow.LANE}
    without = msgspec.structs.replace(default, lanes=lanes)
    assert coolworkflow.flat_policy(without) == coolworkflow.flat_policy(default)
