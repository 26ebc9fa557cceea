-- Sessions, batches and dependencies, which hold tasks back.

-- ------------------------------------------------------------------ sessions

-- name: session_find
-- rows: key text
SELECT {session} FROM rows JOIN session ON session.key = rows.key

-- name: session_save
-- rows: key text, holders int, waiting int, debouncing int, settings text, tokens int, context_window int, cutoff_at int, generation int, touched_at int, interrupted int, agent text, later int
INSERT INTO session ({session}) SELECT * FROM rows WHERE true
ON CONFLICT (key) DO UPDATE SET holders = excluded.holders, waiting = excluded.waiting,
  debouncing = excluded.debouncing, settings = excluded.settings, tokens = excluded.tokens,
  context_window = excluded.context_window, cutoff_at = excluded.cutoff_at,
  generation = excluded.generation, touched_at = excluded.touched_at,
  interrupted = excluded.interrupted, agent = excluded.agent, later = excluded.later

-- name: session_old
SELECT key FROM session WHERE touched_at <= :before AND holders = 0 AND waiting = 0
  AND debouncing = 0 AND later = 0 LIMIT :limit

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
  AND (gate IS NULL OR gate IN ('batch', 'resource', 'suspend') OR (gate = 'delay' AND token > 0)
    OR (gate = 'approval' AND started_at IS NOT NULL))
ORDER BY seq

-- name: inbox_waiting
SELECT {task}, request.body, request.submitter FROM task
JOIN request ON request.seq = task.seq
WHERE task.session = :session AND task.gate = 'session' AND task.state = 'queued'
  AND task.seq > :after
ORDER BY task.seq LIMIT :limit

-- name: session_waiting
SELECT key FROM session WHERE waiting > 0 OR holders > 1

-- name: request_grow
-- rows: seq int, body text
UPDATE request SET body = rows.body FROM rows WHERE request.seq = rows.seq

-- name: session_view
SELECT {session} FROM session WHERE key = :key

-- name: session_list
SELECT {session} FROM session
WHERE key > :after
--? agent: AND agent = :agent
ORDER BY key LIMIT :limit

-- name: lane_oldest
SELECT min(queued_at) FROM task WHERE lane = :lane AND state = 'queued' AND gate IS NULL

-- name: session_ready
-- rows: session text
SELECT {task} FROM rows JOIN task ON task.session = rows.session
WHERE (task.gate IS NULL OR task.gate IN ('batch', 'resource')) AND task.state = 'queued'

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

-- name: dependency_awaited
-- rows: parent text, state int
SELECT rows.parent FROM rows
WHERE EXISTS (SELECT 1 FROM dependency AS d WHERE d.parent = rows.parent AND d.state = rows.state)

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
SELECT parent, edges, state FROM unsettled ORDER BY parent

-- name: unsettled_save
-- rows: parent text, edges int, state text
INSERT INTO unsettled (parent, edges, state) SELECT * FROM rows WHERE true
ON CONFLICT (parent) DO UPDATE SET edges = excluded.edges, state = excluded.state

-- name: unsettled_forget
DELETE FROM unsettled
