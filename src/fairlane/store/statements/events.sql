-- What happened and who is told; what is kept for later use.

-- ------------------------------------------------------------------ events and output

-- name: event_insert
-- rows: id int, seq int, at int, type text, attempt int, detail text, batch text, policy_version int
INSERT INTO event (id, seq, at, type, attempt, detail, batch, policy_version) SELECT * FROM rows

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

-- name: output_sizes
-- rows: seq int, token int
SELECT rows.seq, rows.token, max(output.part) + 1, sum(length(output.text))
FROM rows JOIN output ON output.seq = rows.seq AND output.token = rows.token
GROUP BY rows.seq, rows.token

-- name: output_view
SELECT token, part, attempt, text FROM output
WHERE seq = :seq AND (token, part) > (:token, :part)
ORDER BY token, part LIMIT :limit

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
