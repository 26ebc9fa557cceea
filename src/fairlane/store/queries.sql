-- Every statement Fairlane sends, by name. The two databases share a statement unless they truly
-- differ; then both versions stand next to each other (@sqlite, @postgres).
--
--   :name          a value
--   rows           a table of values, one row per item; `-- rows:` lists its columns and types
--   {task}         the columns of Task, in order; {tally} and {line} likewise
--   --? name: ...  a line that is there only when the value `name` is given
--   (:names...)    a list of values

-- ------------------------------------------------------------------ one writer at a time

-- name: scheduler_lock @sqlite
SELECT last_seq, last_token, policy_version, last_line, last_event, open_edges, unsettled, NULL
FROM scheduler WHERE id = 1
-- name: scheduler_lock @postgres
SELECT last_seq, last_token, policy_version, last_line, last_event, open_edges, unsettled
FROM scheduler WHERE id = 1 FOR UPDATE

-- name: moment @postgres
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: scheduler_save
UPDATE scheduler SET last_seq = :last_seq, last_token = :last_token, last_line = :last_line,
  last_event = :last_event, open_edges = :open_edges, unsettled = :unsettled WHERE id = 1

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
INSERT INTO policy (version, document, source, created_at)
VALUES (:version, :document, :source, :now)

-- name: policy_use
UPDATE scheduler SET policy_version = :version WHERE id = 1

-- ------------------------------------------------------------------ submit

-- name: task_insert
-- rows: seq int, id text, kind text, lane text, agent text, route text, line int, priority int, rank int, state text, gate text, session text, batch text, attempts int, max_attempts int, position int, created_at int, deadline_at int, eligible_at int, queued_at int, started_at int, completed_at int, token int, worker text, lease_expires_at int, callback_url text, unmet int, preempt int
INSERT INTO task ({task}) SELECT * FROM rows

-- name: request_insert
-- rows: seq int, body text
INSERT INTO request (seq, body) SELECT * FROM rows

-- name: idempotency_find
-- rows: agent text, key text
SELECT i.agent, i.key, i.digest, i.answer
FROM rows JOIN idempotency AS i ON i.agent = rows.agent AND i.key = rows.key

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

-- name: task_update
-- rows: seq int, was text, was_token int, state text, gate text, attempts int, deadline_at int, eligible_at int, queued_at int, started_at int, completed_at int, token int, worker text, lease_expires_at int, unmet int, preempt int
UPDATE task SET state = rows.state, gate = rows.gate, attempts = rows.attempts,
  deadline_at = rows.deadline_at, eligible_at = rows.eligible_at, queued_at = rows.queued_at,
  started_at = rows.started_at, completed_at = rows.completed_at, token = rows.token,
  worker = rows.worker, lease_expires_at = rows.lease_expires_at, unmet = rows.unmet,
  preempt = rows.preempt
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

-- name: result_save
-- rows: seq int, result text, error text
INSERT INTO result (seq, result, error) SELECT * FROM rows WHERE true
ON CONFLICT (seq) DO UPDATE SET result = excluded.result, error = excluded.error

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

-- name: line_save
-- rows: queued int, ready int, urgent int, inflight int, slots int, parked int, submitted int, completed int, failed int, cancelled int, rejected int, expired int, dispatched int, waited_ms int, lane text, agent text, route text, share real, served int, id int
INSERT INTO line ({line}) SELECT * FROM rows WHERE true
ON CONFLICT (id) DO UPDATE SET queued = excluded.queued, ready = excluded.ready,
  urgent = excluded.urgent, inflight = excluded.inflight, slots = excluded.slots,
  parked = excluded.parked, submitted = excluded.submitted, completed = excluded.completed,
  failed = excluded.failed, cancelled = excluded.cancelled, rejected = excluded.rejected,
  expired = excluded.expired, dispatched = excluded.dispatched, waited_ms = excluded.waited_ms,
  share = excluded.share, served = excluded.served

-- name: line_agents
SELECT lane, agent FROM line WHERE agent IN (:agents...) GROUP BY lane, agent

-- name: line_routes
SELECT DISTINCT route FROM line WHERE lane = :lane

-- name: task_reline
UPDATE task SET
  line = (SELECT line.id FROM line WHERE line.lane = task.lane AND line.route = task.route
    AND line.agent = CASE WHEN :by_agent = 1 THEN task.agent ELSE '' END),
  rank = CASE WHEN :aging_ms = 0 OR priority <= -20 THEN priority
    ELSE created_at + priority * :aging_ms END
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

-- name: task_preemptible
SELECT {task} FROM task
WHERE lane = :lane AND preempt IS NOT NULL AND lease_expires_at IS NOT NULL
  AND state IN ('assigned', 'running')
ORDER BY priority DESC, seq DESC

-- name: inputs_find
-- rows: child int
SELECT d.child, parent.id, parent.state, result.result FROM rows
JOIN dependency AS d ON d.child = rows.child
JOIN task AS parent ON parent.id = d.parent
LEFT JOIN result ON result.seq = parent.seq

-- ------------------------------------------------------------------ sessions

-- name: session_find
-- rows: key text
SELECT {session} FROM rows JOIN session ON session.key = rows.key

-- name: session_save
-- rows: key text, holders int, waiting int, debouncing int, settings text, tokens int, context_window int, cutoff_at int, generation int, touched_at int
INSERT INTO session ({session}) SELECT * FROM rows WHERE true
ON CONFLICT (key) DO UPDATE SET holders = excluded.holders, waiting = excluded.waiting,
  debouncing = excluded.debouncing, settings = excluded.settings, tokens = excluded.tokens,
  context_window = excluded.context_window, cutoff_at = excluded.cutoff_at,
  generation = excluded.generation, touched_at = excluded.touched_at

-- name: session_old
SELECT key FROM session WHERE touched_at <= :before AND holders = 0 AND waiting = 0
  AND debouncing = 0 LIMIT :limit

-- name: session_forget
-- rows: key text
DELETE FROM session WHERE key IN (SELECT rows.key FROM rows)

-- name: session_next @sqlite
-- rows: session text
SELECT {task} FROM rows
CROSS JOIN task ON task.seq IN (
  SELECT t.seq FROM task AS t
  WHERE t.session = rows.session AND t.gate = 'session' AND t.state = 'queued'
  ORDER BY t.priority, t.seq LIMIT :limit)
-- name: session_next @postgres
-- rows: session text
SELECT {task} FROM rows
CROSS JOIN LATERAL (
  SELECT * FROM task AS t
  WHERE t.session = rows.session AND t.gate = 'session' AND t.state = 'queued'
  ORDER BY t.priority, t.seq LIMIT :limit) AS task

-- name: session_open
SELECT {task} FROM task
WHERE session = :session AND gate IN ('session', 'debounce') AND state = 'queued'
ORDER BY seq

-- name: session_grown
SELECT {task} FROM task
WHERE session = :session AND gate = 'debounce' AND state = 'queued' ORDER BY seq

-- name: session_turns
SELECT {task} FROM task
WHERE session = :session AND lease_expires_at IS NOT NULL ORDER BY seq

-- name: session_held
SELECT {task} FROM task
WHERE session = :session AND state = 'queued'
  AND (gate IS NULL OR gate = 'batch' OR (gate = 'delay' AND token > 0))
ORDER BY seq

-- name: session_waiting
SELECT key FROM session WHERE waiting > 0

-- name: request_grow
-- rows: seq int, body text
UPDATE request SET body = rows.body FROM rows WHERE request.seq = rows.seq

-- name: session_view
SELECT {session} FROM session WHERE key = :key

-- name: session_list
SELECT {session} FROM session
WHERE key > :after ORDER BY key LIMIT :limit

-- name: lane_queued
SELECT {task} FROM task WHERE lane = :lane AND state = 'queued' ORDER BY seq LIMIT :limit

-- name: lane_oldest
SELECT min(queued_at) FROM task WHERE lane = :lane AND state = 'queued' AND gate IS NULL

-- name: session_ready
-- rows: session text
SELECT {task} FROM rows JOIN task ON task.session = rows.session
WHERE (task.gate IS NULL OR task.gate = 'batch') AND task.state = 'queued'

-- ------------------------------------------------------------------ batches

-- name: batch_find
-- rows: id text
SELECT {batch} FROM rows JOIN batch ON batch.id = rows.id

-- name: batch_save
-- rows: id text, seq int, agent text, parallelism int, total int, created_at int, callback_url text, open int, holders int, waiting int, cancelled int, completed_at int
INSERT INTO batch ({batch}) SELECT * FROM rows WHERE true
ON CONFLICT (id) DO UPDATE SET total = excluded.total, open = excluded.open,
  holders = excluded.holders, waiting = excluded.waiting, cancelled = excluded.cancelled,
  completed_at = excluded.completed_at

-- name: batch_next @sqlite
-- rows: batch text
SELECT {task} FROM rows
CROSS JOIN task ON task.seq IN (
  SELECT t.seq FROM task AS t
  WHERE t.batch = rows.batch AND t.gate = 'batch' AND t.state = 'queued'
  ORDER BY t.priority, t.seq LIMIT :limit)
-- name: batch_next @postgres
-- rows: batch text
SELECT {task} FROM rows
CROSS JOIN LATERAL (
  SELECT * FROM task AS t
  WHERE t.batch = rows.batch AND t.gate = 'batch' AND t.state = 'queued'
  ORDER BY t.priority, t.seq LIMIT :limit) AS task

-- name: batch_tasks
SELECT {task} FROM task WHERE batch = :batch ORDER BY seq

-- name: batch_forget
-- rows: id text
DELETE FROM batch WHERE id IN (SELECT rows.id FROM rows)
  AND NOT EXISTS (SELECT 1 FROM task WHERE task.batch = batch.id)

-- name: batch_view
SELECT {batch} FROM batch WHERE id = :id

-- name: batch_view_many
-- rows: seq int
SELECT {batch} FROM rows JOIN batch ON batch.seq = rows.seq

-- name: batch_list
SELECT {batch} FROM batch
WHERE true
--? before: AND batch.seq < :before
--? agent: AND batch.agent = :agent
ORDER BY batch.seq DESC LIMIT :limit

-- name: batch_states
SELECT state, count(*) FROM task WHERE batch = :id GROUP BY state

-- ------------------------------------------------------------------ dependencies

-- name: dependency_insert
-- rows: child int, parent text, state int
INSERT INTO dependency (child, parent, state) SELECT * FROM rows

-- name: dependency_children @sqlite
-- rows: parent text, state int
SELECT d.parent, d.child FROM rows
CROSS JOIN dependency AS d ON d.parent = rows.parent AND d.state = rows.state
LIMIT :limit
-- name: dependency_children @postgres
-- rows: parent text, state int
SELECT d.parent, d.child FROM rows
JOIN dependency AS d ON d.parent = rows.parent AND d.state = rows.state
LIMIT :limit

-- name: dependency_of
-- rows: child int
SELECT d.child, d.parent, d.state FROM rows JOIN dependency AS d ON d.child = rows.child

-- name: dependency_settle
-- rows: child int, parent text, state int
UPDATE dependency SET state = rows.state FROM rows
WHERE dependency.child = rows.child AND dependency.parent = rows.parent

-- name: dependency_delete
-- rows: child int
DELETE FROM dependency WHERE child IN (SELECT rows.child FROM rows)

-- name: unsettled_all
SELECT parent, edges, state FROM unsettled

-- name: unsettled_save
-- rows: parent text, edges int, state text
INSERT INTO unsettled (parent, edges, state) SELECT * FROM rows WHERE true
ON CONFLICT (parent) DO UPDATE SET edges = excluded.edges, state = excluded.state

-- name: unsettled_forget
DELETE FROM unsettled

-- ------------------------------------------------------------------ events and output

-- name: event_insert
-- rows: id int, seq int, at int, type text, attempt int, detail text, batch text
INSERT INTO event (id, seq, at, type, attempt, detail, batch) SELECT * FROM rows

-- name: event_requeued
-- rows: seq int
SELECT event.seq, event.at FROM rows JOIN event ON event.id = (
  SELECT max(e.id) FROM event AS e WHERE e.seq = rows.seq AND e.type = 'task.requeued')

-- name: event_tasks
-- rows: seq int
SELECT {event} FROM rows JOIN event ON event.seq = rows.seq

-- name: event_last
SELECT last_event FROM scheduler WHERE id = 1

-- name: event_list
SELECT {event}, task.id, task.agent, task.lane, task.batch, result.result FROM event
LEFT JOIN task ON task.seq = event.seq
LEFT JOIN result ON result.seq = event.seq AND event.type = 'task.completed'
WHERE event.id > :after AND event.id <= :until
--? task: AND event.seq = (SELECT t.seq FROM task AS t WHERE t.id = :task)
--? batch: AND (task.batch = :batch OR event.batch = :batch)
--? agent: AND task.agent = :agent
--? lane: AND task.lane = :lane
--? types: AND event.type IN (:types...)
ORDER BY event.id LIMIT :limit

-- name: output_insert
-- rows: seq int, token int, part int, attempt int, text text
INSERT INTO output (seq, token, part, attempt, text) SELECT * FROM rows WHERE true
ON CONFLICT (seq, token, part) DO NOTHING

-- name: output_view
SELECT token, part, attempt, text FROM output
WHERE seq = :seq AND (token, part) > (:token, :part)
ORDER BY token, part LIMIT :limit

-- ------------------------------------------------------------------ what time does

-- name: task_overdue
SELECT {task} FROM task
WHERE deadline_at IS NOT NULL
  AND state IN ('waiting_dependency', 'queued', 'assigned', 'running') AND deadline_at <= :now
ORDER BY deadline_at, seq LIMIT :limit

-- name: task_abandoned
SELECT {task} FROM task
WHERE lease_expires_at IS NOT NULL AND lease_expires_at <= :now
ORDER BY lease_expires_at, seq LIMIT :limit

-- name: task_due
SELECT {task} FROM task
WHERE gate IN ('delay', 'debounce') AND state = 'queued' AND eligible_at <= :now
ORDER BY eligible_at, seq LIMIT :limit

-- name: next_due
SELECT
  (SELECT min(deadline_at) FROM task
   WHERE deadline_at IS NOT NULL
     AND state IN ('waiting_dependency', 'queued', 'assigned', 'running')),
  (SELECT min(lease_expires_at) FROM task WHERE lease_expires_at IS NOT NULL),
  (SELECT min(eligible_at) FROM task WHERE gate IN ('delay', 'debounce') AND state = 'queued')

-- name: task_stopped
SELECT seq, token FROM task
WHERE lease_expires_at IS NOT NULL AND worker = :worker
  AND (state IN ('cancelled', 'failed') OR preempt = 1)

-- name: task_leased
SELECT {task} FROM task WHERE lease_expires_at IS NOT NULL ORDER BY lease_expires_at, seq

-- name: task_old
SELECT seq, batch, lane, agent FROM task WHERE completed_at IS NOT NULL AND completed_at <= :before
  AND lease_expires_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = task.seq AND delivery.state = 'due')
  AND NOT EXISTS (SELECT 1 FROM batch JOIN delivery ON delivery.seq = batch.seq
    WHERE batch.id = task.batch AND delivery.state = 'due')
ORDER BY completed_at, seq LIMIT :limit

-- name: task_old_count
SELECT count(*) FROM task WHERE completed_at IS NOT NULL AND completed_at <= :before
  AND lease_expires_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = task.seq AND delivery.state = 'due')
  AND NOT EXISTS (SELECT 1 FROM batch JOIN delivery ON delivery.seq = batch.seq
    WHERE batch.id = task.batch AND delivery.state = 'due')

-- name: task_rejected
SELECT seq, batch, lane, agent FROM task WHERE state = 'rejected' AND completed_at <= :before
  AND NOT EXISTS (SELECT 1 FROM batch JOIN delivery ON delivery.seq = batch.seq
    WHERE batch.id = task.batch AND delivery.state = 'due')
ORDER BY completed_at, seq LIMIT :limit

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

-- ------------------------------------------------------------------ webhooks owed

-- name: delivery_insert
-- rows: id text, seq int, url text, event text, state text, due_at int, attempts int, created_at int
INSERT INTO delivery (id, seq, url, event, state, due_at, attempts, created_at)
SELECT * FROM rows

-- name: delivery_due
SELECT id, seq, url, event, attempts FROM delivery
WHERE state = 'due' AND due_at <= :now ORDER BY due_at, id LIMIT :limit

-- name: delivery_next @sqlite
SELECT min(due_at) - :now FROM delivery WHERE state = 'due'
-- name: delivery_next @postgres
SELECT min(due_at) - (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM delivery WHERE state = 'due'

-- name: delivery_claim
-- rows: id text, due_at int
UPDATE delivery SET due_at = rows.due_at, attempts = delivery.attempts + 1, error = NULL
FROM rows WHERE delivery.id = rows.id AND delivery.state = 'due'

-- name: delivery_reclaim
UPDATE delivery SET due_at = :now
WHERE state = 'due' AND due_at > :now AND attempts > 0 AND error IS NULL

-- name: delivery_settle
-- rows: id text, state text, due_at int, error text, settled_at int
UPDATE delivery SET state = rows.state, due_at = rows.due_at, error = rows.error,
  settled_at = rows.settled_at
FROM rows WHERE delivery.id = rows.id AND delivery.state = 'due'

-- name: secret_get
SELECT webhook_secret FROM scheduler WHERE id = 1

-- name: secret_set
UPDATE scheduler SET webhook_secret = :secret WHERE id = 1

-- ------------------------------------------------------------------ reads for people

-- name: task_view
SELECT {task}, request.body, result.result, result.error FROM task
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq
WHERE task.id = :id

-- name: task_view_many
-- rows: seq int
SELECT {task}, request.body, result.result, result.error FROM rows
JOIN task ON task.seq = rows.seq
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq

-- name: task_list
SELECT {task}, request.body, result.result, result.error FROM task
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq
WHERE true
--? before: AND task.seq < :before
--? agent: AND task.agent = :agent
--? lane: AND task.lane = :lane
--? session: AND task.session = :session
--? batch: AND task.batch = :batch
--? kind: AND task.kind = :kind
--? states: AND task.state IN (:states...)
ORDER BY task.seq DESC LIMIT :limit

-- name: task_ids
SELECT task.seq, task.id FROM task
WHERE true
--? before: AND task.seq < :before
--? agent: AND task.agent = :agent
--? lane: AND task.lane = :lane
--? session: AND task.session = :session
--? batch: AND task.batch = :batch
--? kind: AND task.kind = :kind
--? states: AND task.state IN (:states...)
ORDER BY task.seq DESC LIMIT :limit

-- name: lane_view
SELECT name, {tally} FROM lane ORDER BY name

-- name: agent_view
SELECT agent, CAST(sum(queued) AS bigint), CAST(sum(inflight) AS bigint),
  CAST(sum(submitted) AS bigint), CAST(sum(completed) AS bigint), CAST(sum(failed) AS bigint),
  CAST(sum(cancelled) AS bigint), CAST(sum(rejected) AS bigint)
FROM line
WHERE agent <> ''
--? lane: AND line.lane = :lane
GROUP BY agent ORDER BY sum(queued) + sum(inflight) DESC, agent LIMIT :limit

-- name: delivery_view
SELECT id, url, event, state, attempts, error, due_at, settled_at FROM delivery
WHERE seq = (SELECT seq FROM task WHERE task.id = :id) ORDER BY id

-- ------------------------------------------------------------------ doctor: the recount

-- name: recount
SELECT lane, agent, route,
  sum(CASE WHEN state IN ('queued', 'waiting_dependency') THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate IS NULL THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate IS NULL AND priority <= -20 THEN 1 ELSE 0 END),
  sum(CASE WHEN state IN ('assigned', 'running') THEN 1 ELSE 0 END),
  sum(CASE WHEN lease_expires_at IS NOT NULL THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'parked' THEN 1 ELSE 0 END)
FROM task GROUP BY lane, agent, route

-- name: line_all
SELECT {line} FROM line

-- name: session_all
SELECT key, holders, waiting, debouncing FROM session

-- name: session_recount
SELECT session,
  sum(CASE WHEN lease_expires_at IS NOT NULL OR (state = 'queued' AND (gate IS NULL OR gate = 'batch' OR (gate = 'delay' AND token > 0))) THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate = 'session' THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate = 'debounce' THEN 1 ELSE 0 END)
FROM task
WHERE session IS NOT NULL AND (lease_expires_at IS NOT NULL OR state = 'queued')
GROUP BY session

-- name: batch_all
SELECT {batch} FROM batch

-- name: batch_recount
SELECT batch,
  count(*),
  sum(CASE WHEN state IN ('waiting_dependency', 'queued', 'assigned', 'running', 'parked') THEN 1 ELSE 0 END),
  sum(CASE WHEN lease_expires_at IS NOT NULL OR (state = 'queued' AND gate IS NULL) THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate = 'batch' THEN 1 ELSE 0 END)
FROM task WHERE batch IS NOT NULL GROUP BY batch

-- name: dependency_recount
SELECT open_edges, (SELECT count(*) FROM dependency WHERE state = 0),
  unsettled, (SELECT count(*) FROM unsettled)
FROM scheduler WHERE id = 1

-- name: unmet_recount
SELECT task.id, task.unmet,
  (SELECT count(*) FROM dependency AS d WHERE d.child = task.seq AND d.state = 0)
FROM task WHERE state = 'waiting_dependency'

-- ------------------------------------------------------------------ templates

-- name: template_insert
-- rows: seq int, id text, name text, definition text, usage_count int, created_at int, updated_at int
INSERT INTO template (seq, id, name, definition, usage_count, created_at, updated_at)
SELECT * FROM rows

-- name: template_by_id
-- rows: id text
SELECT template.seq, template.id, template.definition, template.usage_count, template.created_at,
  template.updated_at
FROM rows JOIN template ON template.id = rows.id

-- name: template_update
-- rows: id text, name text, definition text, updated_at int
UPDATE template SET name = rows.name, definition = rows.definition, updated_at = rows.updated_at
FROM rows WHERE template.id = rows.id

-- name: template_use
-- rows: id text, uses int
UPDATE template SET usage_count = template.usage_count + rows.uses
FROM rows WHERE template.id = rows.id

-- name: template_delete
-- rows: id text
DELETE FROM template WHERE id IN (SELECT rows.id FROM rows)

-- name: template_list
SELECT seq, id, definition, usage_count, created_at, updated_at FROM template
WHERE true
--? before: AND seq < :before
--? name: AND name = :name
ORDER BY seq DESC LIMIT :limit
