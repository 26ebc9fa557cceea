-- Cron: jobs and the log of their runs.

-- ------------------------------------------------------------------ jobs

-- name: job_save
-- rows: seq int, id text, agent text, name text, definition text, enabled int, slot_at int, next_run_at int, created_at int, updated_at int, disabled_reason text, runs int, logged int, consecutive_errors int, alerted int, last_run_at int, last_status text, last_error text, submitter text
INSERT INTO job (seq, id, agent, name, definition, enabled, slot_at, next_run_at, created_at,
  updated_at, disabled_reason, runs, logged, consecutive_errors, alerted, last_run_at, last_status,
  last_error, submitter)
SELECT * FROM rows WHERE true
ON CONFLICT (seq) DO UPDATE SET agent = excluded.agent, name = excluded.name,
  definition = excluded.definition, enabled = excluded.enabled, slot_at = excluded.slot_at,
  next_run_at = excluded.next_run_at, updated_at = excluded.updated_at,
  disabled_reason = excluded.disabled_reason, runs = excluded.runs, logged = excluded.logged,
  consecutive_errors = excluded.consecutive_errors, alerted = excluded.alerted,
  last_run_at = excluded.last_run_at, last_status = excluded.last_status,
  last_error = excluded.last_error, submitter = excluded.submitter

-- name: job_by_id
-- rows: id text
SELECT {job} FROM rows JOIN job ON job.id = rows.id

-- name: job_by_name
-- rows: agent text, name text
SELECT {job} FROM rows JOIN job ON job.agent = rows.agent AND job.name = rows.name

-- name: job_due
SELECT {job} FROM job WHERE enabled = 1 AND next_run_at <= :now
ORDER BY next_run_at, seq LIMIT :limit

-- name: job_next
SELECT min(next_run_at) FROM job WHERE enabled = 1

-- name: job_stop
-- rows: id text, reason text
UPDATE job SET enabled = 0, next_run_at = NULL, disabled_reason = rows.reason
FROM rows WHERE job.id = rows.id

-- name: job_delete
-- rows: id text
DELETE FROM job WHERE id IN (SELECT rows.id FROM rows)

-- name: job_list
SELECT {job} FROM job
WHERE true
--? before: AND seq < :before
--? agent: AND agent = :agent
--? name: AND name = :name
--? enabled: AND enabled = :enabled
ORDER BY seq DESC LIMIT :limit

-- ------------------------------------------------------------------ runs

-- name: run_insert
-- rows: seq int, id text, job_id text, job_name text, slot text, trigger text, status text, scheduled_at int, number int, task_id text, started_at int, finished_at int, attempts int, error text, summary text, forget_at int
INSERT INTO run ({run}) SELECT * FROM rows

-- name: run_by_slot
-- rows: job_id text, slot text
SELECT run.job_id, run.slot FROM rows
JOIN run ON run.job_id = rows.job_id AND run.slot = rows.slot

-- name: run_by_task
-- rows: task_id text
SELECT {run} FROM rows JOIN run ON run.task_id = rows.task_id

-- name: run_active
-- rows: job_id text
SELECT run.job_id, count(*) FROM rows
JOIN run ON run.job_id = rows.job_id AND run.status = 'queued'
GROUP BY run.job_id

-- name: run_open
SELECT task_id FROM run WHERE job_id = :job AND status = 'queued' ORDER BY number

-- name: run_end
-- rows: seq int, status text, started_at int, finished_at int, attempts int, error text, summary text, forget_at int
UPDATE run SET status = rows.status, started_at = rows.started_at,
  finished_at = rows.finished_at, attempts = rows.attempts, error = rows.error,
  summary = rows.summary, forget_at = rows.forget_at
FROM rows WHERE run.seq = rows.seq

-- name: run_list
SELECT {run}, task.started_at, task.attempts FROM run
LEFT JOIN task ON task.id = run.task_id AND run.status = 'queued'
WHERE true
--? before: AND run.seq < :before
--? agent: AND EXISTS (SELECT 1 FROM job WHERE job.id = run.job_id AND job.agent = :agent)
--? status: AND run.status = :status
--? started: AND run.status = 'queued' AND (task.started_at IS NOT NULL) = (:started = 'running')
ORDER BY run.seq DESC LIMIT :limit

-- name: run_list_of
SELECT {run}, task.started_at, task.attempts FROM run
LEFT JOIN task ON task.id = run.task_id AND run.status = 'queued'
WHERE run.job_id = :job
--? before: AND run.seq < :before
--? agent: AND EXISTS (SELECT 1 FROM job WHERE job.id = run.job_id AND job.agent = :agent)
--? status: AND run.status = :status
--? started: AND run.status = 'queued' AND (task.started_at IS NOT NULL) = (:started = 'running')
ORDER BY run.number DESC LIMIT :limit

-- name: run_by_seq
-- rows: seq int
SELECT {run}, task.started_at, task.attempts FROM rows
JOIN run ON run.seq = rows.seq
LEFT JOIN task ON task.id = run.task_id AND run.status = 'queued'

-- ------------------------------------------------------------------ retention

-- name: run_excess
-- rows: job_id text, number int
SELECT run.seq FROM rows
JOIN run ON run.job_id = rows.job_id AND run.number <= rows.number
WHERE run.status <> 'queued'
  AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = run.seq AND delivery.state = 'due')
LIMIT :limit

-- name: run_old
-- This form of the condition keeps a planner without statistics from reading all due jobs.
SELECT seq FROM run WHERE forget_at IS NOT NULL AND forget_at <= :now
  AND NOT EXISTS (SELECT 1 FROM delivery
    WHERE delivery.seq = run.seq AND coalesce(delivery.state, '') = 'due')
ORDER BY forget_at LIMIT :limit

-- name: run_delete
-- rows: seq int
DELETE FROM run WHERE seq IN (SELECT rows.seq FROM rows)

-- ------------------------------------------------------------------ the doctor

-- name: run_astray
SELECT run.id, task.state FROM run LEFT JOIN task ON task.id = run.task_id
WHERE run.status = 'queued'
  AND (task.id IS NULL OR task.state IN ('done', 'failed', 'cancelled', 'rejected', 'parked'))

-- name: job_asleep
SELECT id FROM job WHERE enabled = 1 AND next_run_at IS NULL
