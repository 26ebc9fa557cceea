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

-- name: task_view_brief
-- rows: seq int
SELECT {task}, request.body, NULL, result.error FROM rows
JOIN task ON task.seq = rows.seq
JOIN request ON request.seq = task.seq LEFT JOIN result ON result.seq = task.seq

-- Which tasks to find. Texts and values have no index: callers search a bounded range of numbers.
-- The settings of an agent are not searched, because they may contain secrets. A plus keeps the
-- databases from reading by the time of the end, which would sort.
-- part: task_conditions @sqlite
--? before: AND task.seq < :before
--? after: AND task.seq > :after
--? agent: AND task.agent = :agent
--? lane: AND task.lane = :lane
--? session: AND task.session = :session
--? batch: AND task.batch = :batch
--? kind: AND task.kind = :kind
--? capability: AND task.route = :capability
--? states: AND task.state IN (:states...)
--? priority: AND task.priority = :priority
--? parent: AND task.seq IN (SELECT child FROM dependency WHERE parent = :parent)
--? since: AND task.created_at >= :since
--? until: AND task.created_at < :until
--? finished_since: AND +task.completed_at >= :finished_since
--? finished_until: AND +task.completed_at < :finished_until
--? error: AND EXISTS (SELECT 1 FROM result WHERE result.seq = task.seq AND lower(result.error) LIKE lower(:error) ESCAPE '!')
--? text: AND EXISTS (SELECT 1 FROM request LEFT JOIN result ON result.seq = request.seq WHERE request.seq = task.seq AND lower(concat_ws(' ', task.id, task.agent, task.route, task.lane, task.session, task.batch, result.error, json_extract(request.body, '$.instruction'), json_extract(request.body, '$.params'), json_extract(request.body, '$.metadata'))) LIKE lower(:text) ESCAPE '!')
--? where: AND EXISTS (SELECT 1 FROM request WHERE request.seq = task.seq AND NOT EXISTS (SELECT 1 FROM json_each(:where) AS found WHERE NOT EXISTS (SELECT 1 FROM json_each(request.body, json_extract(found.value, '$.path')) AS rows WHERE json_type(request.body, json_extract(found.value, '$.path')) <> 'object' AND CASE rows.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(rows.atom AS text) END = json_extract(found.value, '$.value'))))
-- part: task_conditions @postgres
--? before: AND task.seq < :before
--? after: AND task.seq > :after
--? agent: AND task.agent = :agent
--? lane: AND task.lane = :lane
--? session: AND task.session = :session
--? batch: AND task.batch = :batch
--? kind: AND task.kind = :kind
--? capability: AND task.route = :capability
--? states: AND task.state IN (:states...)
--? priority: AND task.priority = :priority
--? parent: AND task.seq IN (SELECT child FROM dependency WHERE parent = :parent)
--? since: AND task.created_at >= :since
--? until: AND task.created_at < :until
--? finished_since: AND +task.completed_at >= :finished_since
--? finished_until: AND +task.completed_at < :finished_until
--? error: AND EXISTS (SELECT 1 FROM result WHERE result.seq = task.seq AND lower(result.error) LIKE lower(:error) ESCAPE '!')
--? text: AND EXISTS (SELECT 1 FROM request LEFT JOIN result ON result.seq = request.seq WHERE request.seq = task.seq AND lower(concat_ws(' ', task.id, task.agent, task.route, task.lane, task.session, task.batch, result.error, CAST(request.body AS json) ->> 'instruction', CAST(request.body AS json) ->> 'params', CAST(request.body AS json) ->> 'metadata')) LIKE lower(:text) ESCAPE '!')
--? where: AND EXISTS (SELECT 1 FROM request WHERE request.seq = task.seq AND NOT EXISTS (SELECT 1 FROM json_array_elements(CAST(:where AS json)) AS found WHERE NOT EXISTS (SELECT 1 FROM (SELECT CAST(request.body AS json) #> ARRAY(SELECT json_array_elements_text(found -> 'keys')) AS value) AS item WHERE CASE json_typeof(item.value) WHEN 'array' THEN EXISTS (SELECT 1 FROM json_array_elements_text(item.value) AS one WHERE one = found ->> 'value') WHEN 'object' THEN false ELSE item.value #>> '{}' = found ->> 'value' END)))

-- name: task_ids
SELECT task.seq, task.id FROM task
WHERE true
{part task_conditions}
ORDER BY task.seq DESC LIMIT :limit

-- name: task_ids_up
SELECT task.seq, task.id FROM task
WHERE true
{part task_conditions}
ORDER BY task.seq LIMIT :limit

-- name: task_count
SELECT task.state, count(*) FROM task
WHERE true
{part task_conditions}
GROUP BY task.state

-- A parked task has not ended: it failed when it was parked.
-- name: task_failures
SELECT task.seq, task.id, task.state, task.route,
  coalesce(task.completed_at, (
    SELECT max(e.at) FROM event AS e WHERE e.seq = task.seq AND e.type = 'task.parked'
  ), task.queued_at),
  result.error
FROM task LEFT JOIN result ON result.seq = task.seq
WHERE task.state = :state AND (task.state = 'failed' OR task.state = 'parked') AND task.seq < :upto
{part task_conditions}
ORDER BY task.seq DESC LIMIT :limit

-- ------------------------------------------------------------------ short ids

-- name: short_task
SELECT id FROM task WHERE id >= :first AND id < :last
--? agent: AND agent = :agent
ORDER BY id LIMIT :limit

-- name: short_batch
SELECT id FROM batch WHERE id >= :first AND id < :last
--? agent: AND agent = :agent
ORDER BY id LIMIT :limit

-- name: short_job
SELECT id FROM job WHERE id >= :first AND id < :last
--? agent: AND agent = :agent
ORDER BY id LIMIT :limit

-- name: short_approval
SELECT id FROM approval WHERE id >= :first AND id < :last
--? agent: AND agent = :agent
ORDER BY id LIMIT :limit

-- name: short_template
SELECT id FROM template WHERE id >= :first AND id < :last
ORDER BY id LIMIT :limit

-- name: short_delivery
SELECT id FROM delivery WHERE id >= :first AND id < :last
--? agent: AND false
ORDER BY id LIMIT :limit

-- name: short_endpoint
SELECT id FROM endpoint WHERE id >= :first AND id < :last
--? agent: AND agent = :agent
ORDER BY id LIMIT :limit

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
