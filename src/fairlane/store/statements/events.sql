-- Events, output, the webhook secret and templates.

-- ------------------------------------------------------------------ events and output

-- name: event_insert
-- rows: id int, seq int, at int, type text, attempt int, detail text, batch text, policy_version int
INSERT INTO event (id, seq, at, type, attempt, detail, batch, policy_version) SELECT * FROM rows

-- name: event_requeued
-- rows: seq int
SELECT event.seq, event.at FROM rows JOIN event ON event.id = (
  SELECT max(e.id) FROM event AS e WHERE e.seq = rows.seq AND e.type = 'task.requeued')

-- name: event_released
-- rows: seq int
SELECT rows.seq, count(*) FROM rows JOIN event ON event.seq = rows.seq
WHERE event.type = 'task.released' AND event.id > coalesce((
  SELECT max(e.id) FROM event AS e WHERE e.seq = rows.seq AND e.type = 'task.requeued'), 0)
GROUP BY rows.seq

-- Progress and steps are not part of the attempt log, and there may be many such events.
-- name: event_tasks
-- rows: seq int
SELECT {event} FROM rows JOIN event ON event.seq = rows.seq
  AND event.type NOT IN ('task.progress', 'task.step', 'task.signal')

-- name: event_last
SELECT last_event FROM scheduler WHERE id = 1

-- Events are read by their numbers: an index of tasks would read all tasks of an agent or a lane
-- for each window, and sort. `coalesce` keeps the databases from using one.
-- part: event_page
SELECT {event}, task.id, task.agent, task.lane, task.batch, result.result, task.session, task.route
FROM event
LEFT JOIN task ON task.seq = event.seq
LEFT JOIN result ON result.seq = event.seq AND event.type = 'task.completed'
WHERE event.id > :after AND event.id <= :until
--? task: AND event.seq = (SELECT t.seq FROM task AS t WHERE t.id = :task)
--? batch: AND (task.batch = :batch OR event.batch = :batch)
--? agent: AND coalesce(task.agent, '') = :agent
--? owner: AND (task.agent = :owner OR EXISTS (SELECT 1 FROM batch WHERE batch.id = event.batch AND batch.agent = :owner))
--? lane: AND coalesce(task.lane, '') = :lane
--? session: AND coalesce(task.session, '') = :session
--? types: AND event.type IN (:types...)

-- name: event_list
{part event_page}
ORDER BY event.id LIMIT :limit

-- name: event_list_down
{part event_page}
ORDER BY event.id DESC LIMIT :limit

-- name: event_from
SELECT id, at FROM event WHERE id >= :first ORDER BY id LIMIT 1

-- name: output_insert
-- rows: seq int, token int, part int, attempt int, text text
INSERT INTO output (seq, token, part, attempt, text) SELECT * FROM rows WHERE true
ON CONFLICT (seq, token, part) DO NOTHING

-- name: output_sizes
-- rows: seq int, token int
SELECT rows.seq, rows.token, max(output.part) + 1, sum(length(output.text))
FROM rows JOIN output ON output.seq = rows.seq AND output.token = rows.token
GROUP BY rows.seq, rows.token

-- name: output_newest
SELECT max(token) FROM output WHERE seq = :seq

-- name: output_view
SELECT token, part, attempt, text FROM output
WHERE seq = :seq AND (token, part) > (:token, :part)
ORDER BY token, part LIMIT :limit

-- ------------------------------------------------------------------ the secret of webhooks

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
