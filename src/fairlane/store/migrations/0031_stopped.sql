-- Leases whose runs have to stop, of which there are few. Until a vacuum, the index of all leases has
-- an entry for every task that has run.
CREATE INDEX task_stopped ON task (worker)
  WHERE lease_expires_at IS NOT NULL AND (state = 'cancelled' OR state = 'failed' OR preempt = 1);
