-- Monitoring: slots in use, waiting tasks, nodes.

-- name: slots_by_agent
SELECT lane, agent, count(*) FROM task WHERE lease_expires_at IS NOT NULL GROUP BY lane, agent

-- name: slots_by_worker
SELECT worker, count(*) FROM task WHERE lease_expires_at IS NOT NULL GROUP BY worker

-- The condition on the lane is always true; it makes SQLite search the index of lines with work.
-- name: lines_ready
SELECT id, lane, agent, ready, dispatched FROM line WHERE ready > 0 AND lane >= '' LIMIT :limit

-- name: delivery_owed
SELECT count(*) FROM (
  SELECT due_at FROM delivery WHERE state = 'due' AND due_at >= 0 LIMIT :limit) AS found

-- name: schema_number @sqlite
SELECT user_version FROM pragma_user_version
-- name: schema_number @postgres
SELECT max(version) FROM schema_version

-- ------------------------------------------------------------------ nodes

-- name: node_save
INSERT INTO node (name, host, pid, version, started_at, seen_at, draining)
VALUES (:name, :host, :pid, :version, :started_at, :now, :draining)
ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, draining = excluded.draining

-- name: node_list
SELECT name, host, pid, version, started_at, seen_at, draining FROM node ORDER BY started_at, name

-- name: node_leave
DELETE FROM node WHERE name = :name

-- name: node_forget
DELETE FROM node WHERE name <> :name AND seen_at <= :before
