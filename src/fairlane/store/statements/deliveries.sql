-- Webhook deliveries with their logs, and endpoints with their own secret.

-- ------------------------------------------------------------------ deliveries

-- name: delivery_insert
-- rows: id text, seq int, url text, event text, state text, due_at int, attempts int, created_at int, agent text
INSERT INTO delivery (id, seq, url, event, state, due_at, attempts, created_at, agent)
SELECT * FROM rows

-- name: delivery_due
SELECT id, seq, url, event, attempts, agent FROM delivery
WHERE state = 'due' AND due_at <= :now ORDER BY due_at, id LIMIT :limit

-- name: delivery_next @sqlite
SELECT max(0, min(due_at)) - :now FROM delivery WHERE state = 'due'
-- name: delivery_next @postgres
SELECT CASE WHEN min(due_at) < 0 THEN 0 ELSE min(due_at) END
  - (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM delivery WHERE state = 'due'

-- name: delivery_claim
-- rows: id text, due_at int
UPDATE delivery SET due_at = rows.due_at, attempts = delivery.attempts + 1, error = NULL
FROM rows WHERE delivery.id = rows.id AND delivery.state = 'due'

-- name: delivery_defer
-- rows: id text, due_at int
UPDATE delivery SET due_at = rows.due_at
FROM rows WHERE delivery.id = rows.id AND delivery.state = 'due'

-- name: delivery_reclaim
UPDATE delivery SET due_at = :now
WHERE state = 'due' AND due_at > :now AND attempts > 0 AND error IS NULL

-- name: delivery_settle
-- rows: id text, state text, due_at int, error text, settled_at int, status int, line text
UPDATE delivery SET state = rows.state, due_at = rows.due_at, error = rows.error,
  settled_at = rows.settled_at, status = rows.status,
  log = CASE WHEN length(delivery.log) < 8000 THEN delivery.log ELSE '' END || rows.line
FROM rows WHERE delivery.id = rows.id AND delivery.state = 'due'

-- name: delivery_again
-- rows: id text, due_at int
UPDATE delivery SET state = 'due', due_at = rows.due_at, attempts = 0, error = NULL, settled_at = NULL
FROM rows WHERE delivery.id = rows.id

-- name: delivery_by_id
-- rows: id text
SELECT {delivery} FROM rows JOIN delivery ON delivery.id = rows.id

-- name: delivery_view
SELECT {delivery} FROM delivery WHERE delivery.id = :id

-- name: delivery_list
SELECT {delivery} FROM delivery
WHERE true
--? agent: AND delivery.agent = :agent
--? state: AND delivery.state = :state
--? before: AND (delivery.created_at, delivery.id) < (:before, :before_id)
ORDER BY delivery.created_at DESC, delivery.id DESC LIMIT :limit

-- name: delivery_list_of
SELECT {delivery} FROM delivery
WHERE delivery.seq = coalesce((SELECT task.seq FROM task WHERE task.id = :about),
  (SELECT batch.seq FROM batch WHERE batch.id = :about),
  (SELECT run.seq FROM run WHERE run.id = :about))
--? agent: AND delivery.agent = :agent
--? state: AND delivery.state = :state
--? before: AND (delivery.created_at, delivery.id) < (:before, :before_id)
ORDER BY delivery.created_at DESC, delivery.id DESC LIMIT :limit

-- ------------------------------------------------------------------ endpoints

-- name: endpoint_insert
-- rows: seq int, id text, agent text, url text, created_at int, rotated_at int, previous_until int, disabled_at int, events text, secret text
INSERT INTO endpoint (seq, id, agent, url, created_at, rotated_at, previous_until, disabled_at, events, secret)
SELECT * FROM rows

-- name: endpoint_by_url
-- rows: agent text, url text
SELECT {endpoint}, endpoint.secret, endpoint.previous FROM rows
JOIN endpoint ON endpoint.agent = rows.agent AND endpoint.url = rows.url

-- name: endpoint_by_id
-- rows: id text
SELECT {endpoint}, endpoint.secret, endpoint.previous FROM rows
JOIN endpoint ON endpoint.id = rows.id

-- name: endpoint_subscribed
SELECT {endpoint} FROM endpoint WHERE events > '' AND disabled_at IS NULL ORDER BY events, seq

-- name: endpoint_view
SELECT {endpoint} FROM endpoint WHERE endpoint.id = :id

-- name: endpoint_rotate
-- rows: id text, rotated_at int, previous_until int, secret text, previous text
UPDATE endpoint SET rotated_at = rows.rotated_at, previous_until = rows.previous_until,
  secret = rows.secret, previous = rows.previous
FROM rows WHERE endpoint.id = rows.id

-- name: endpoint_able
-- rows: id text, disabled_at int
UPDATE endpoint SET disabled_at = rows.disabled_at FROM rows WHERE endpoint.id = rows.id

-- name: endpoint_delete
-- rows: id text
DELETE FROM endpoint WHERE id IN (SELECT rows.id FROM rows)

-- name: endpoint_list
SELECT {endpoint} FROM endpoint
WHERE true
--? agent: AND agent = :agent
--? before: AND seq < :before
ORDER BY seq DESC LIMIT :limit
