-- Reads for callers, and the doctor's recount.

-- ------------------------------------------------------------------ reads

-- name: task_view
SELECT {task}, request.body, result.result, result.error FROM task
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq
WHERE task.id = :id

-- name: task_view_many
-- rows: seq int
SELECT {task}, request.body, result.result, result.error FROM rows
JOIN task ON task.seq = rows.seq
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq

-- Only the text of an instruction is searched: the rest of a request may contain secrets.
-- name: task_list @sqlite
SELECT {task}, request.body,
--? brief: CASE WHEN :brief = 1 THEN NULL ELSE
result.result
--? brief: END
, result.error FROM task
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq
WHERE true
--? before: AND task.seq < :before
--? agent: AND task.agent = :agent
--? lane: AND task.lane = :lane
--? session: AND task.session = :session
--? batch: AND task.batch = :batch
--? kind: AND task.kind = :kind
--? capability: AND task.route = :capability
--? states: AND task.state IN (:states...)
--? parent: AND task.seq IN (SELECT child FROM dependency WHERE parent = :parent)
--? floor: AND task.seq > :floor
--? text: AND lower(concat_ws(' ', task.id, task.route, task.session, result.error, json_extract(request.body, '$.instruction'))) LIKE lower(:text) ESCAPE '!'
ORDER BY task.seq DESC LIMIT :limit
-- name: task_list @postgres
SELECT {task}, request.body,
--? brief: CASE WHEN :brief = 1 THEN NULL ELSE
result.result
--? brief: END
, result.error FROM task
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq
WHERE true
--? before: AND task.seq < :before
--? agent: AND task.agent = :agent
--? lane: AND task.lane = :lane
--? session: AND task.session = :session
--? batch: AND task.batch = :batch
--? kind: AND task.kind = :kind
--? capability: AND task.route = :capability
--? states: AND task.state IN (:states...)
--? parent: AND task.seq IN (SELECT child FROM dependency WHERE parent = :parent)
--? floor: AND task.seq > :floor
--? text: AND lower(concat_ws(' ', task.id, task.route, task.session, result.error, CAST(request.body AS json) ->> 'instruction')) LIKE lower(:text) ESCAPE '!'
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

-- name: task_state
SELECT state FROM task WHERE seq = :seq

-- name: task_agent
SELECT agent FROM task WHERE seq = :seq

-- name: lane_view
SELECT name, {tally} FROM lane ORDER BY name

-- name: agent_view
SELECT agent, CAST(sum(queued) AS bigint), CAST(sum(inflight) AS bigint),
  CAST(sum(submitted) AS bigint), CAST(sum(completed) AS bigint), CAST(sum(failed) AS bigint),
  CAST(sum(cancelled) AS bigint), CAST(sum(rejected) AS bigint)
FROM line
WHERE agent <> ''
--? lane: AND line.lane = :lane
--? agent: AND line.agent = :agent
GROUP BY agent ORDER BY sum(queued) + sum(inflight) DESC, agent LIMIT :limit

-- name: policy_list
SELECT version, document, source, created_at, author, note FROM policy
WHERE true
--? version: AND version = :version
--? before: AND version < :before
ORDER BY version DESC LIMIT :limit

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
SELECT key, holders, waiting, debouncing, later, interrupted FROM session

-- name: session_recount
SELECT session,
  sum(CASE WHEN lease_expires_at IS NOT NULL OR (state = 'queued' AND (gate IS NULL OR gate IN ('batch', 'resource', 'suspend') OR (gate = 'delay' AND token > 0) OR (gate = 'approval' AND started_at IS NOT NULL))) THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate = 'session' THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate = 'debounce' THEN 1 ELSE 0 END),
  sum(CASE WHEN state IN ('waiting_dependency', 'parked') OR (state = 'queued' AND ((gate = 'delay' AND token = 0) OR (gate = 'approval' AND started_at IS NULL))) THEN 1 ELSE 0 END),
  sum(CASE WHEN lease_expires_at IS NOT NULL AND completed_at IS NOT NULL THEN 1 ELSE 0 END)
FROM task
WHERE session IS NOT NULL
  AND (lease_expires_at IS NOT NULL OR state IN ('queued', 'waiting_dependency', 'parked'))
GROUP BY session

-- name: batch_all
SELECT {batch} FROM batch

-- name: batch_recount
SELECT batch,
  count(*),
  sum(CASE WHEN state IN ('waiting_dependency', 'queued', 'assigned', 'running', 'parked') THEN 1 ELSE 0 END),
  sum(CASE WHEN lease_expires_at IS NOT NULL OR (state = 'queued' AND (gate IS NULL OR gate = 'resource')) THEN 1 ELSE 0 END),
  sum(CASE WHEN state = 'queued' AND gate = 'batch' THEN 1 ELSE 0 END)
FROM task WHERE batch IS NOT NULL GROUP BY batch

-- name: dependency_recount
SELECT open_edges,
  (SELECT count(*) FROM dependency WHERE state = 0) + (SELECT count(*) FROM awaiting),
  unsettled, (SELECT count(*) FROM unsettled)
FROM scheduler WHERE id = 1

-- name: unmet_recount
SELECT task.id, task.unmet,
  (SELECT count(*) FROM dependency AS d WHERE d.child = task.seq AND d.state = 0)
FROM task WHERE state = 'waiting_dependency'

-- ------------------------------------------------------------------ why a task waits

-- name: why_parents
SELECT d.parent, task.state, task.agent FROM dependency AS d LEFT JOIN task ON task.id = d.parent
WHERE d.child = :seq AND d.state = 0 ORDER BY d.parent LIMIT :limit

-- name: why_ahead
SELECT count(*) FROM (
  SELECT seq FROM task
  WHERE line = :line AND state = 'queued' AND gate IS NULL AND (rank, seq) < (:rank, :seq)
  LIMIT :limit) AS found

-- name: why_session_ahead
SELECT count(*) FROM (
  SELECT seq FROM task
  WHERE session = :session AND state = 'queued' AND gate = 'session'
    AND (priority, seq) < (:priority, :seq)
  LIMIT :limit) AS found

-- name: why_holders
SELECT id FROM task WHERE lease_expires_at IS NOT NULL
--? lane: AND lane = :lane
--? agent: AND agent = :agent
--? workers: AND worker IN (:workers...)
ORDER BY lease_expires_at, seq LIMIT :limit

-- name: why_batch_holders
SELECT id FROM task
WHERE batch = :batch AND (lease_expires_at IS NOT NULL OR (state = 'queued' AND (gate IS NULL OR gate = 'resource')))
--? agent: AND agent = :agent
ORDER BY seq LIMIT :limit
