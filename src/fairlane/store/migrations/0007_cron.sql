-- Cron: jobs and the log of their runs. What a person wrote is one JSON text; beside it stands what
-- is looked up or moves. A run outlives its job, so it names it.

CREATE TABLE job (
  seq {key},
  id {text} NOT NULL UNIQUE,
  agent {text} NOT NULL,
  name {text} NOT NULL,
  definition {text} NOT NULL,
  enabled {int} NOT NULL,
  slot_at {int} NOT NULL,
  next_run_at {int},
  created_at {int} NOT NULL,
  updated_at {int} NOT NULL,
  disabled_reason {text},
  runs {int} NOT NULL,
  logged {int} NOT NULL,
  consecutive_errors {int} NOT NULL,
  alerted {int} NOT NULL,
  last_run_at {int},
  last_status {text},
  last_error {text}
) {hot};

CREATE UNIQUE INDEX job_name ON job (agent, name);
CREATE INDEX job_due ON job (next_run_at, seq) WHERE enabled = 1;

CREATE TABLE run (
  seq {key},
  id {text} NOT NULL UNIQUE,
  job_id {text} NOT NULL,
  job_name {text} NOT NULL,
  slot {text} NOT NULL,
  trigger {text} NOT NULL,
  status {text} NOT NULL, -- 'queued' as long as its task goes on
  scheduled_at {int} NOT NULL,
  number {int} NOT NULL, -- in the log of its job
  task_id {text},
  started_at {int},
  finished_at {int},
  attempts {int} NOT NULL,
  error {text},
  summary {text},
  forget_at {int}
) {table};

CREATE UNIQUE INDEX run_slot ON run (job_id, slot);
CREATE UNIQUE INDEX run_number ON run (job_id, number);
CREATE INDEX run_open ON run (job_id, number) WHERE status = 'queued';
CREATE INDEX run_task ON run (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX run_old ON run (forget_at) WHERE forget_at IS NOT NULL;
