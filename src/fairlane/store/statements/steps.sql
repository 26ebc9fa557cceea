-- The wall clock was set by `by` milliseconds: move the ends of spans. `engine/verbs/clock_steps.py`.

-- name: clock_get
SELECT clock_boot, clock_ahead FROM scheduler WHERE id = 1

-- name: clock_save
UPDATE scheduler SET clock_boot = :boot, clock_ahead = :ahead WHERE id = 1

-- name: step_leases
UPDATE task SET lease_expires_at = lease_expires_at + :by WHERE lease_expires_at IS NOT NULL

-- name: step_tasks
UPDATE task SET queued_at = queued_at + :by,
  deadline_at = CASE WHEN deadline_ms IS NULL THEN deadline_at ELSE deadline_at + :by END,
  eligible_at = CASE WHEN (coalesce(gate, '') <> 'suspend' AND (delay_ms IS NOT NULL OR token > 0 OR gate = 'debounce'))
    OR (gate = 'suspend' AND EXISTS (SELECT 1 FROM suspension AS s WHERE s.seq = task.seq AND s.span = 1))
    THEN eligible_at + :by ELSE eligible_at END
WHERE state IN ('waiting_dependency', 'queued', 'assigned', 'running')

-- name: step_ranks
UPDATE task SET rank = rank + :by
WHERE lane = :lane AND priority > :critical
  AND state IN ('waiting_dependency', 'queued', 'assigned', 'running')

-- name: step_deliveries
UPDATE delivery SET due_at = due_at + :by WHERE state = 'due'

-- name: step_endpoints
UPDATE endpoint SET previous_until = previous_until + :by WHERE previous_until > :before

-- name: step_sessions
UPDATE session SET cutoff_at = cutoff_at + :by WHERE cutoff_at > :now

-- name: step_nodes
UPDATE node SET seen_at = seen_at + :by

-- name: step_workers
UPDATE worker SET seen_at = seen_at + :by
