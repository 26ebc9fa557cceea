-- A task's life: submitted, leased, changed, counted, ended by time. How to read this: `queries.py`.

-- ------------------------------------------------------------------ one writer at a time

-- name: scheduler_lock @sqlite
SELECT last_seq, last_token, policy_version, last_line, last_event, open_edges, unsettled,
  last_number, reservations, NULL
FROM scheduler WHERE id = 1
-- name: scheduler_lock @postgres
SELECT last_seq, last_token, policy_version, last_line, last_event, open_edges, unsettled,
  last_number, reservations
FROM scheduler WHERE id = 1 FOR UPDATE

-- name: moment @postgres
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- Behind the lock: the time, this transaction, and the one that wrote the scheduler's row, which
-- every writer does. If that was our last one, no other writer has written since.
-- name: lock_moment @postgres
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, mod(txid_current(), 4294967296),
  xmin::text::bigint
FROM scheduler WHERE id = 1

-- The same; from here on the transaction's time is limited.
-- name: lock_moment_limited @postgres
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, mod(txid_current(), 4294967296),
  xmin::text::bigint, set_config('transaction_timeout', :limit::text, true)
FROM scheduler WHERE id = 1

-- The mark of every session that writes: an advisory lock that all of them share.
-- name: writer_begin @postgres
SELECT pg_advisory_lock_shared(1717660018, 1)

-- name: holder_end @postgres
SELECT a.pid,
  (extract(epoch FROM clock_timestamp() - greatest(a.query_start, a.state_change)) * 1000)::bigint,
  pg_terminate_backend(a.pid)
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = session_user AND a.pid <> pg_backend_pid()
  AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.locktype = 'advisory'
    AND l.classid = 1717660018::oid AND l.objid = 1::oid AND l.objsubid = 2)
  AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation'
    AND l.relation = 'scheduler'::regclass AND l.mode IN ('RowShareLock', 'RowExclusiveLock'))
  AND (
    (a.wait_event_type = 'Client' AND greatest(a.query_start, a.state_change)
      < clock_timestamp() - :silent_ms * interval '1 millisecond')
    OR a.xact_start < clock_timestamp() - :old_ms * interval '1 millisecond'
  )

-- name: scheduler_save
UPDATE scheduler SET last_seq = :last_seq, last_token = :last_token, last_line = :last_line,
  last_event = :last_event, open_edges = :open_edges, unsettled = :unsettled,
  last_number = :last_number, reservations = :reservations WHERE id = 1

-- name: writer_save
INSERT INTO writer (name, commit_id, seen_at) VALUES (:name, :commit_id, :now)
ON CONFLICT (name) DO UPDATE SET commit_id = excluded.commit_id, seen_at = excluded.seen_at

-- name: writer_commit
SELECT commit_id FROM writer WHERE name = :name

-- name: writer_forget
DELETE FROM writer WHERE seen_at <= :before

-- name: policy_newest
SELECT version, document FROM policy ORDER BY version DESC LIMIT 1

-- name: policy_insert
INSERT INTO policy (version, document, source, created_at, author, note)
VALUES (:version, :document, :source, :now, :author, :note)

-- name: policy_use
UPDATE scheduler SET policy_version = :version WHERE id = 1

-- ------------------------------------------------------------------ submit

-- name: task_insert
-- rows: seq int, id text, kind text, lane text, agent text, route text, line int, priority int, rank int, state text, gate text, session text, batch text, attempts int, max_attempts int, position int, created_at int, deadline_at int, eligible_at int, queued_at int, started_at int, completed_at int, token int, worker text, lease_expires_at int, callback_url text, unmet int, preempt int, delay_ms int, deadline_ms int, unapproved int, needs text, wait int, steps int, budget text
INSERT INTO task ({task}) SELECT * FROM rows

-- name: request_insert
-- rows: seq int, body text, submitter text
INSERT INTO request (seq, body, submitter) SELECT * FROM rows

-- name: idempotency_find
-- rows: agent text, key text
SELECT i.agent, i.key, i.digest, i.answer
FROM rows JOIN idempotency AS i ON i.agent = rows.agent AND i.key = rows.key

-- name: idempotency_forget
DELETE FROM idempotency WHERE agent = :agent AND key >= :from_key AND key < :to_key

-- name: idempotency_insert
-- rows: agent text, key text, digest text, answer text, seq int, created_at int
INSERT INTO idempotency (agent, key, digest, answer, seq, created_at) SELECT * FROM rows

-- ------------------------------------------------------------------ transitions

-- name: task_by_id
-- rows: id text
SELECT {task} FROM rows JOIN task ON task.id = rows.id

-- name: task_by_seq
-- rows: seq int
SELECT {task} FROM rows JOIN task ON task.seq = rows.seq

-- The given tasks whose rows were not written by the given transactions; a deleted one has nulls.
-- name: task_changed @postgres
-- rows: seq int, transaction int
SELECT rows.seq, task.xmin::text::bigint, {task} FROM rows LEFT JOIN task ON task.seq = rows.seq
WHERE task.seq IS NULL OR task.xmin::text::bigint <> rows.transaction

-- name: task_update
-- rows: seq int, was text, was_token int, state text, gate text, attempts int, deadline_at int, eligible_at int, queued_at int, started_at int, completed_at int, token int, worker text, lease_expires_at int, unmet int, preempt int, deadline_ms int, unapproved int
UPDATE task SET state = rows.state, gate = rows.gate, attempts = rows.attempts,
  deadline_at = rows.deadline_at, eligible_at = rows.eligible_at, queued_at = rows.queued_at,
  started_at = rows.started_at, completed_at = rows.completed_at, token = rows.token,
  worker = rows.worker, lease_expires_at = rows.lease_expires_at, unmet = rows.unmet,
  preempt = rows.preempt, deadline_ms = rows.deadline_ms, unapproved = rows.unapproved
FROM rows
WHERE task.seq = rows.seq AND task.state = rows.was AND task.token = rows.was_token

-- name: task_renew
-- rows: seq int, token int, lease_expires_at int
UPDATE task SET lease_expires_at = rows.lease_expires_at
FROM rows
WHERE task.seq = rows.seq AND task.token = rows.token AND task.lease_expires_at IS NOT NULL

-- name: task_place
-- rows: seq int, line int, rank int
UPDATE task SET line = rows.line, rank = rows.rank FROM rows WHERE task.seq = rows.seq

-- name: request_find
-- rows: seq int
SELECT request.seq, request.body FROM rows JOIN request ON request.seq = rows.seq

-- name: request_submitter
-- rows: seq int
SELECT request.seq, request.submitter FROM rows JOIN request ON request.seq = rows.seq

-- name: results_find
-- rows: seq int
SELECT result.seq, result.result FROM rows JOIN result ON result.seq = rows.seq

-- name: errors_find
-- rows: seq int
SELECT result.seq, result.error FROM rows JOIN result ON result.seq = rows.seq

-- name: result_save
-- rows: seq int, result text, error text
INSERT INTO result (seq, result, error) SELECT * FROM rows WHERE true
ON CONFLICT (seq) DO UPDATE SET result = excluded.result, error = excluded.error

-- name: traceback_save
INSERT INTO traceback (seq, failed_at, text) VALUES (:seq, :failed_at, :text)
ON CONFLICT (seq, failed_at) DO UPDATE SET text = excluded.text

-- name: traceback_find
-- rows: seq int
SELECT traceback.seq, traceback.failed_at, traceback.text
FROM rows JOIN traceback ON traceback.seq = rows.seq

-- ------------------------------------------------------------------ counters

-- name: lane_all
SELECT name, {tally} FROM lane

-- name: lane_save
-- rows: name text, queued int, ready int, urgent int, inflight int, slots int, parked int, submitted int, completed int, failed int, cancelled int, rejected int, expired int, dispatched int, waited_ms int
INSERT INTO lane (name, {tally}) SELECT * FROM rows WHERE true
ON CONFLICT (name) DO UPDATE SET queued = excluded.queued, ready = excluded.ready,
  urgent = excluded.urgent, inflight = excluded.inflight, slots = excluded.slots,
  parked = excluded.parked, submitted = excluded.submitted, completed = excluded.completed,
  failed = excluded.failed, cancelled = excluded.cancelled, rejected = excluded.rejected,
  expired = excluded.expired, dispatched = excluded.dispatched, waited_ms = excluded.waited_ms

-- name: line_find
-- rows: lane text, agent text
SELECT {line} FROM rows JOIN line ON line.lane = rows.lane AND line.agent = rows.agent

-- name: line_of_tasks
-- rows: seq int
SELECT DISTINCT {line} FROM rows JOIN task ON task.seq = rows.seq
JOIN line ON line.lane = task.lane AND line.agent = task.agent

-- name: line_insert
-- rows: queued int, ready int, urgent int, inflight int, slots int, parked int, submitted int, completed int, failed int, cancelled int, rejected int, expired int, dispatched int, waited_ms int, lane text, agent text, route text, share real, served int, id int
INSERT INTO line ({line}) SELECT * FROM rows

-- name: line_update
-- rows: queued int, ready int, urgent int, inflight int, slots int, parked int, submitted int, completed int, failed int, cancelled int, rejected int, expired int, dispatched int, waited_ms int, lane text, agent text, route text, share real, served int, id int
UPDATE line SET queued = rows.queued, ready = rows.ready, urgent = rows.urgent,
  inflight = rows.inflight, slots = rows.slots, parked = rows.parked,
  submitted = rows.submitted, completed = rows.completed, failed = rows.failed,
  cancelled = rows.cancelled, rejected = rows.rejected, expired = rows.expired,
  dispatched = rows.dispatched, waited_ms = rows.waited_ms, share = rows.share,
  served = rows.served
FROM rows WHERE line.id = rows.id

-- name: line_agents
SELECT lane, agent FROM line WHERE agent IN (:agents...) GROUP BY lane, agent

-- name: line_routes
SELECT DISTINCT route FROM line WHERE lane = :lane

-- A time outside the calendar, which an older version may have stored, counts as the earliest.
-- name: task_reline
UPDATE task SET
  line = (SELECT line.id FROM line WHERE line.lane = task.lane AND line.route = task.route
    AND line.agent = CASE WHEN :by_agent = 1 THEN task.agent ELSE '' END),
  rank = CASE WHEN :aging_ms = 0 OR priority <= -20 THEN priority
    WHEN created_at BETWEEN -62135596800000 AND 253402300799999
      THEN created_at + priority * :aging_ms
    ELSE -62135596800000 + priority * :aging_ms END
WHERE lane = :lane AND state IN ('waiting_dependency', 'queued', 'assigned', 'running', 'parked')

-- ------------------------------------------------------------------ lease

-- name: line_urgent @sqlite
-- rows: lane text, route text
SELECT {line} FROM rows
CROSS JOIN line ON line.lane = rows.lane AND line.agent IN (
  SELECT l.agent FROM line AS l
  WHERE l.lane = rows.lane AND l.route = rows.route AND l.urgent > 0
  ORDER BY l.share, l.served, l.agent LIMIT :limit)
-- name: line_urgent @postgres
-- rows: lane text, route text
SELECT {line} FROM rows
CROSS JOIN LATERAL (
  SELECT l.agent FROM line AS l
  WHERE l.lane = rows.lane AND l.route = rows.route AND l.urgent > 0
  ORDER BY l.share, l.served, l.agent LIMIT :limit) AS first
JOIN line ON line.lane = rows.lane AND line.agent = first.agent

-- name: line_order @sqlite
-- rows: lane text, route text
SELECT {line} FROM rows
CROSS JOIN line ON line.lane = rows.lane AND line.agent IN (
  SELECT l.agent FROM line AS l
  WHERE l.lane = rows.lane AND l.route = rows.route AND l.ready > 0
  ORDER BY l.share, l.served, l.agent LIMIT :limit)
-- name: line_order @postgres
-- rows: lane text, route text
SELECT {line} FROM rows
CROSS JOIN LATERAL (
  SELECT l.agent FROM line AS l
  WHERE l.lane = rows.lane AND l.route = rows.route AND l.ready > 0
  ORDER BY l.share, l.served, l.agent LIMIT :limit) AS first
JOIN line ON line.lane = rows.lane AND line.agent = first.agent

-- name: line_urgent_agents
SELECT lane, agent FROM line WHERE lane = :lane AND route = :route AND urgent > 0
ORDER BY share, served, agent LIMIT :limit

-- name: line_order_agents
SELECT lane, agent FROM line WHERE lane = :lane AND route = :route AND ready > 0
ORDER BY share, served, agent LIMIT :limit

-- name: line_ready_routes
WITH RECURSIVE found (route) AS (
  SELECT min(route) FROM line WHERE lane = :lane AND ready > 0
  UNION ALL
  SELECT (SELECT min(line.route) FROM line
    WHERE line.lane = :lane AND line.ready > 0 AND line.route > found.route)
  FROM found WHERE found.route IS NOT NULL)
SELECT route FROM found WHERE route IS NOT NULL

-- name: task_head @sqlite
-- rows: line int
SELECT {task}, request.body FROM rows
CROSS JOIN task ON task.seq = (
  SELECT t.seq FROM task AS t
  WHERE t.line = rows.line AND t.state = 'queued' AND t.gate IS NULL
  ORDER BY t.rank, t.seq LIMIT 1)
CROSS JOIN request ON request.seq = task.seq
-- name: task_head @postgres
-- rows: line int
SELECT {task}, request.body FROM rows
CROSS JOIN LATERAL (
  SELECT * FROM task AS t
  WHERE t.line = rows.line AND t.state = 'queued' AND t.gate IS NULL
  ORDER BY t.rank, t.seq LIMIT 1) AS task
JOIN request ON request.seq = task.seq

-- name: task_next @sqlite
-- rows: line int
SELECT {task}, request.body FROM rows
CROSS JOIN task ON task.seq IN (
  SELECT t.seq FROM task AS t
  WHERE t.line = rows.line AND t.state = 'queued' AND t.gate IS NULL
  ORDER BY t.rank, t.seq LIMIT :limit)
CROSS JOIN request ON request.seq = task.seq
-- name: task_next @postgres
-- rows: line int
SELECT {task}, request.body FROM rows
CROSS JOIN LATERAL (
  SELECT * FROM task AS t
  WHERE t.line = rows.line AND t.state = 'queued' AND t.gate IS NULL
  ORDER BY t.rank, t.seq LIMIT :limit) AS task
JOIN request ON request.seq = task.seq

-- name: task_next_of @sqlite
-- rows: line int
SELECT {task}, request.body FROM rows
CROSS JOIN task ON task.seq IN (
  SELECT t.seq FROM task AS t
  WHERE t.line = rows.line AND t.state = 'queued' AND t.gate IS NULL AND t.agent = :agent
  ORDER BY t.rank, t.seq LIMIT :limit)
CROSS JOIN request ON request.seq = task.seq
-- name: task_next_of @postgres
-- rows: line int
SELECT {task}, request.body FROM rows
CROSS JOIN LATERAL (
  SELECT * FROM task AS t
  WHERE t.line = rows.line AND t.state = 'queued' AND t.gate IS NULL AND t.agent = :agent
  ORDER BY t.rank, t.seq LIMIT :limit) AS task
JOIN request ON request.seq = task.seq

-- name: task_preemptible
SELECT {task} FROM task
WHERE lane = :lane AND preempt IS NOT NULL AND lease_expires_at IS NOT NULL
  AND state IN ('assigned', 'running')
ORDER BY priority DESC, seq DESC

-- name: inputs_find
-- rows: child int
SELECT d.child, parent.seq, parent.id, parent.state, length(result.result) FROM rows
JOIN dependency AS d ON d.child = rows.child
JOIN task AS parent ON parent.id = d.parent
LEFT JOIN result ON result.seq = parent.seq

-- ------------------------------------------------------------------ ticks

-- name: task_overdue
SELECT {task} FROM task
WHERE deadline_at IS NOT NULL
  AND (state = 'queued' OR state = 'assigned' OR state = 'running' OR state = 'waiting_dependency')
  AND deadline_at <= :now
ORDER BY deadline_at, seq LIMIT :limit

-- name: task_abandoned
SELECT {task} FROM task
WHERE lease_expires_at IS NOT NULL AND lease_expires_at <= :now
--? by_hand: AND lane NOT IN (:by_hand...)
ORDER BY lease_expires_at, seq LIMIT :limit

-- name: task_due
SELECT {task} FROM task
WHERE state = 'queued' AND (gate = 'delay' OR gate = 'debounce' OR gate = 'suspend')
  AND eligible_at <= :now
ORDER BY eligible_at, seq LIMIT :limit

-- name: next_due
SELECT
  (SELECT min(deadline_at) FROM task
   WHERE deadline_at IS NOT NULL AND (state = 'queued' OR state = 'assigned' OR state = 'running'
     OR state = 'waiting_dependency')),
  (SELECT lease_expires_at FROM task WHERE lease_expires_at IS NOT NULL
--? by_hand: AND lane NOT IN (:by_hand...)
   ORDER BY lease_expires_at, seq LIMIT 1),
  (SELECT min(eligible_at) FROM task
   WHERE state = 'queued' AND (gate = 'delay' OR gate = 'debounce' OR gate = 'suspend')),
  (SELECT min(expires_at) FROM approval WHERE state = 'open' AND expires_at IS NOT NULL)

-- name: task_stopped
SELECT seq, token FROM task
WHERE lease_expires_at IS NOT NULL AND worker = :worker
  AND (state = 'cancelled' OR state = 'failed' OR preempt = 1)

-- name: task_leased
SELECT {task} FROM task WHERE lease_expires_at IS NOT NULL ORDER BY lease_expires_at, seq

-- name: task_old
SELECT seq, batch, lane, agent FROM task WHERE completed_at IS NOT NULL AND completed_at <= :before
  AND lease_expires_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = task.seq AND delivery.state = 'due')
  AND NOT EXISTS (SELECT 1 FROM batch JOIN delivery ON delivery.seq = batch.seq
    WHERE batch.id = task.batch AND delivery.state = 'due')
  AND NOT EXISTS (SELECT 1 FROM unsettled WHERE unsettled.parent = task.id)
ORDER BY completed_at, seq LIMIT :limit

-- name: task_old_count
SELECT count(*) FROM task WHERE completed_at IS NOT NULL AND completed_at <= :before
  AND lease_expires_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = task.seq AND delivery.state = 'due')
  AND NOT EXISTS (SELECT 1 FROM batch JOIN delivery ON delivery.seq = batch.seq
    WHERE batch.id = task.batch AND delivery.state = 'due')
  AND NOT EXISTS (SELECT 1 FROM unsettled WHERE unsettled.parent = task.id)

-- name: task_rejected
SELECT seq, batch, lane, agent FROM task WHERE state = 'rejected' AND completed_at <= :before
  AND NOT EXISTS (SELECT 1 FROM batch JOIN delivery ON delivery.seq = batch.seq
    WHERE batch.id = task.batch AND delivery.state = 'due')
ORDER BY completed_at, seq LIMIT :limit

-- name: rejected_count
SELECT count(*) FROM (SELECT 1 FROM task WHERE state = 'rejected' LIMIT :limit) AS found

-- name: task_delete
-- rows: seq int
DELETE FROM task WHERE seq IN (SELECT rows.seq FROM rows)
-- name: request_delete
-- rows: seq int
DELETE FROM request WHERE seq IN (SELECT rows.seq FROM rows)
-- name: result_delete
-- rows: seq int
DELETE FROM result WHERE seq IN (SELECT rows.seq FROM rows)
-- name: delivery_delete
-- rows: seq int
DELETE FROM delivery WHERE seq IN (SELECT rows.seq FROM rows)
-- name: delivery_forget
-- rows: id text
DELETE FROM delivery WHERE seq IN (
  SELECT batch.seq FROM rows JOIN batch ON batch.id = rows.id
  WHERE NOT EXISTS (SELECT 1 FROM task WHERE task.batch = batch.id))
-- name: event_delete
-- rows: seq int
DELETE FROM event WHERE seq IN (SELECT rows.seq FROM rows)
-- name: event_forget
-- rows: batch text
DELETE FROM event WHERE batch IN (SELECT rows.batch FROM rows)
  AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.id = event.batch)
-- name: traceback_delete
-- rows: seq int
DELETE FROM traceback WHERE seq IN (SELECT rows.seq FROM rows)
-- name: output_delete
-- rows: seq int
DELETE FROM output WHERE seq IN (SELECT rows.seq FROM rows)
-- name: idempotency_delete
-- rows: seq int
DELETE FROM idempotency WHERE seq IN (SELECT rows.seq FROM rows)
-- name: line_forget
-- rows: lane text, agent text
DELETE FROM line WHERE (lane, agent) IN (SELECT rows.lane, rows.agent FROM rows)
  AND queued = 0 AND slots = 0 AND parked = 0
  AND NOT EXISTS (SELECT 1 FROM task WHERE task.agent = line.agent AND task.lane = line.lane)
