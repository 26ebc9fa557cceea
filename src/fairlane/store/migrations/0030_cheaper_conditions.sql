-- The same indexes, spelled without lists: for a list of three or more SQLite builds a table each time
-- it looks whether a row belongs into the index, which took a sixth of the time of a task's writes.
DROP INDEX task_delay;
CREATE INDEX task_delay ON task (eligible_at)
  WHERE state = 'queued' AND (gate = 'delay' OR gate = 'debounce' OR gate = 'suspend');
DROP INDEX task_deadline;
CREATE INDEX task_deadline ON task (deadline_at)
  WHERE deadline_at IS NOT NULL
    AND (state = 'queued' OR state = 'assigned' OR state = 'running' OR state = 'waiting_dependency');
DROP INDEX task_failed;
CREATE INDEX task_failed ON task (state, seq) WHERE state = 'failed' OR state = 'parked';
