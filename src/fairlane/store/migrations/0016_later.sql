-- Sessions count their tasks that come later: those that wait for a moment or for other tasks, and
-- parked ones. Until now such a session had no row, so it could not be shown and another agent
-- could take it.
ALTER TABLE session ADD COLUMN later {int} NOT NULL DEFAULT 0;
INSERT INTO session (key, holders, waiting, touched_at, agent, later)
SELECT task.session, 0, 0, max(task.created_at), min(task.agent), count(*) FROM task
WHERE task.session IS NOT NULL AND (task.state IN ('waiting_dependency', 'parked')
  OR (task.state = 'queued' AND task.gate = 'delay' AND task.token = 0))
GROUP BY task.session
ON CONFLICT (key) DO UPDATE SET later = excluded.later;
DROP INDEX session_idle;
CREATE INDEX session_idle ON session (touched_at)
  WHERE holders = 0 AND waiting = 0 AND debouncing = 0 AND later = 0;
-- A plan counts tasks that back off by their attempts: an imported entry has failed elsewhere, and
-- never had a lease here.
DROP INDEX task_held;
CREATE INDEX task_held ON task (lane, coalesce(gate, ''), rank, seq, attempts)
  WHERE coalesce(gate, '') <> '';
