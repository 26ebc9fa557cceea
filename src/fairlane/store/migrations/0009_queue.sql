-- What a plan lists of the tasks that cannot go: those behind a gate and the parked ones, in order.
-- The lane `queue` is listed by priority in every state; no other lane pays for that.

-- The gate is spelled so that a planner without statistics does not take this index for the gates
-- of one session or one batch.
CREATE INDEX task_held ON task (lane, coalesce(gate, ''), rank, seq, token)
  WHERE coalesce(gate, '') <> '';
CREATE INDEX task_parked ON task (lane, rank, seq) WHERE state = 'parked';
CREATE INDEX task_entry ON task (state, rank, seq) WHERE lane = 'queue';
