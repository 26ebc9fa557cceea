-- Suspended runs: what they wait for, and signals.

-- name: suspension_insert
-- rows: seq int, number int, name text, until text, span int
INSERT INTO suspension (seq, number, name, until, span) SELECT * FROM rows

-- name: suspension_of
-- rows: seq int
SELECT s.seq, s.number, s.name, s.until, s.span FROM rows JOIN suspension AS s ON s.seq = rows.seq

-- name: suspension_delete
-- rows: seq int
DELETE FROM suspension WHERE seq IN (SELECT rows.seq FROM rows)

-- name: awaiting_insert
-- rows: parent text, seq int
INSERT INTO awaiting (parent, seq) SELECT * FROM rows

-- name: awaiting_find @sqlite
-- rows: parent text
SELECT a.parent, a.seq FROM rows CROSS JOIN awaiting AS a ON a.parent = rows.parent LIMIT :limit
-- name: awaiting_find @postgres
-- rows: parent text
SELECT a.parent, a.seq FROM rows JOIN awaiting AS a ON a.parent = rows.parent LIMIT :limit

-- name: awaiting_of
-- rows: seq int
SELECT a.seq, a.parent FROM rows JOIN awaiting AS a ON a.seq = rows.seq

-- name: awaiting_arrive
-- rows: parent text, seq int
DELETE FROM awaiting WHERE (parent, seq) IN (SELECT rows.parent, rows.seq FROM rows)

-- name: awaiting_delete
-- rows: seq int
DELETE FROM awaiting WHERE seq IN (SELECT rows.seq FROM rows)

-- name: awaited_ends
-- rows: id text
SELECT task.seq, task.id, task.state, length(result.result), result.error
FROM rows JOIN task ON task.id = rows.id LEFT JOIN result ON result.seq = task.seq

-- name: awaited_view
SELECT a.parent, task.state, task.agent FROM awaiting AS a LEFT JOIN task ON task.id = a.parent
WHERE a.seq = :seq ORDER BY a.parent LIMIT :limit

-- name: suspension_listening
-- rows: session text, until text
SELECT s.seq FROM rows
JOIN task ON task.session = rows.session AND task.gate = 'suspend' AND task.state = 'queued'
JOIN suspension AS s ON s.seq = task.seq AND s.until = rows.until

-- name: signal_insert
-- rows: seq int, name text, value text, at int
INSERT INTO signal (seq, name, value, at) SELECT * FROM rows

-- name: signal_find
-- rows: seq int, name text
SELECT s.seq, s.name, s.value, s.at
FROM rows JOIN signal AS s ON s.seq = rows.seq AND s.name = rows.name

-- name: signal_count
SELECT count(*) FROM signal WHERE seq = :seq

-- name: signal_delete
-- rows: seq int
DELETE FROM signal WHERE seq IN (SELECT rows.seq FROM rows)

-- name: suspension_recount
SELECT task.id, CASE WHEN task.gate = 'suspend' AND task.state = 'queued' THEN 1 ELSE 0 END,
  CASE WHEN s.seq IS NULL THEN 0 ELSE 1 END
FROM task LEFT JOIN suspension AS s ON s.seq = task.seq
WHERE (task.gate = 'suspend' AND task.state = 'queued') OR s.seq IS NOT NULL
