-- Steps that runs have recorded.

-- name: checkpoint_insert
-- rows: seq int, number int, name text, value text, at int, intent int
INSERT INTO checkpoint (seq, number, name, value, at, intent) SELECT * FROM rows

-- name: checkpoint_settle
-- rows: seq int, number int, name text, value text, at int, intent int
UPDATE checkpoint SET value = rows.value, at = rows.at, intent = rows.intent FROM rows
WHERE checkpoint.seq = rows.seq AND checkpoint.number = rows.number AND checkpoint.name = rows.name

-- name: checkpoint_brief
-- rows: seq int
SELECT c.seq, c.number, c.name, length(c.value), c.intent FROM rows JOIN checkpoint AS c ON c.seq = rows.seq

-- name: checkpoint_of
-- rows: seq int
SELECT c.seq, c.number, c.name, c.value, c.at, c.intent FROM rows JOIN checkpoint AS c ON c.seq = rows.seq

-- name: checkpoint_delete
-- rows: seq int
DELETE FROM checkpoint WHERE seq IN (SELECT rows.seq FROM rows)

-- name: task_steps
-- rows: seq int, token int, steps int
UPDATE task SET steps = rows.steps FROM rows
WHERE task.seq = rows.seq AND task.token = rows.token

-- name: checkpoint_recount
SELECT task.id, task.steps, (SELECT count(*) FROM checkpoint AS c WHERE c.seq = task.seq)
FROM task WHERE steps IS NOT NULL
