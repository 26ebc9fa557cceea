-- Failed and parked tasks are found without reading the others.
CREATE INDEX task_failed ON task (state, seq) WHERE state IN ('failed', 'parked');
