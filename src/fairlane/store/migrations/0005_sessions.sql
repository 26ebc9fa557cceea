-- Sessions with settings, usage and marks of their own; messages that may still grow; what lanes
-- are asked about.

ALTER TABLE session DROP COLUMN max_concurrent;
ALTER TABLE session ADD COLUMN debouncing {int} NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN settings {text};
ALTER TABLE session ADD COLUMN tokens {int};
ALTER TABLE session ADD COLUMN context_window {int};
ALTER TABLE session ADD COLUMN cutoff_at {int};
ALTER TABLE session ADD COLUMN generation {int} NOT NULL DEFAULT 0;
ALTER TABLE session ADD COLUMN touched_at {int} NOT NULL DEFAULT 0;

DROP INDEX task_delay;
CREATE INDEX task_delay ON task (eligible_at)
  WHERE gate IN ('delay', 'debounce') AND state = 'queued';
CREATE INDEX task_turn ON task (session) WHERE session IS NOT NULL AND lease_expires_at IS NOT NULL;
CREATE INDEX task_waiting ON task (lane, queued_at) WHERE state = 'queued' AND gate IS NULL;
CREATE INDEX session_idle ON session (touched_at)
  WHERE holders = 0 AND waiting = 0 AND debouncing = 0;
