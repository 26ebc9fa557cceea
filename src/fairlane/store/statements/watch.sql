-- Monitoring: slots in use, waiting tasks, nodes.

-- name: slots_by_agent
SELECT lane, agent, count(*) FROM task WHERE lease_expires_at IS NOT NULL GROUP BY lane, agent

-- name: slots_by_worker
SELECT worker, count(*) FROM task WHERE lease_expires_at IS NOT NULL GROUP BY worker

-- The condition on the lane is always true; it makes SQLite search the index of lines with work.
-- name: lines_ready
SELECT id, lane, agent, ready, dispatched, route FROM line WHERE ready > 0 AND lane >= '' LIMIT :limit

-- name: delivery_owed
SELECT count(*) FROM (
  SELECT due_at FROM delivery WHERE state = 'due' AND due_at >= 0 LIMIT :limit) AS found

-- name: schema_number @sqlite
SELECT user_version FROM pragma_user_version
-- name: schema_number @postgres
SELECT max(version) FROM schema_version

-- ------------------------------------------------------------------ nodes

-- name: node_save
INSERT INTO node (name, host, pid, version, started_at, seen_at, draining, lock_key)
VALUES (:name, :host, :pid, :version, :started_at, :now, :draining, :lock_key)
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, draining = excluded.draining,
  lock_key = excluded.lock_key, gone_at = NULL

-- name: node_list
SELECT name, host, pid, version, started_at, seen_at, draining, lock_key, gone_at
FROM node ORDER BY started_at, name

-- name: node_leave
DELETE FROM node WHERE name = :name

-- name: node_forget
DELETE FROM node WHERE name <> :name AND seen_at <= :before

-- name: node_gone
-- rows: name text, gone_at int
UPDATE node SET gone_at = rows.gone_at FROM rows WHERE node.name = rows.name

-- A node holds a lock in a session of its own, which ends with its process. The database releases
-- all locks when it starts, so nothing is concluded in its first seconds.
-- name: node_lock @postgres
SELECT pg_try_advisory_lock(:lock_key::bigint)

-- Other nodes that do not hold their locks, and this one if its own session does not.
-- name: node_missing @postgres
SELECT node.name FROM node
WHERE node.lock_key IS NOT NULL AND node.gone_at IS NULL AND node.name <> :name
  AND clock_timestamp() > pg_postmaster_start_time() + interval '5 seconds'
  AND NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint << 32) + l.objid::bigint = node.lock_key)
UNION ALL
SELECT :name::text
WHERE NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.pid = pg_backend_pid() AND (l.classid::bigint << 32) + l.objid::bigint = :lock_key::bigint)

-- name: node_unlocked @postgres
-- rows: name text
SELECT node.name FROM rows JOIN node ON node.name = rows.name
WHERE node.lock_key IS NOT NULL AND node.gone_at IS NULL
  AND NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint << 32) + l.objid::bigint = node.lock_key)

-- ------------------------------------------------------------------ connections of workers

-- name: presence_open
INSERT INTO presence (worker, id, agent, server, opened_at)
VALUES (:worker, :id, :agent, :server, :now)
ON CONFLICT (worker, id) DO NOTHING

-- name: presence_close
DELETE FROM presence WHERE worker = :worker AND id = :id

-- name: presence_find
SELECT id FROM presence WHERE worker = :worker AND agent = :agent

-- name: presence_forget
DELETE FROM presence WHERE server <> :name AND server NOT IN (
  SELECT name FROM node WHERE gone_at IS NULL)
