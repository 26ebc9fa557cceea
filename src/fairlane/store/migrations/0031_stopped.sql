-- The leases whose runs have to stop: few, while the rows of all that ever ran would be passed over.
CREATE INDEX task_stopped ON task (worker)
  WHERE lease_expires_at IS NOT NULL AND (state = 'cancelled' OR state = 'failed' OR preempt = 1);
