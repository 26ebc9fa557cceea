-- What needs the attention of an operator: each finds a few rows by index.

-- name: attention_ready
SELECT {task} FROM task
WHERE lane = :lane AND state = 'queued' AND gate IS NULL AND queued_at <= :before
ORDER BY queued_at LIMIT :limit

-- name: attention_lines
SELECT route, agent, ready FROM line WHERE lane = :lane AND ready > 0
ORDER BY route, share LIMIT :limit

-- name: attention_parked
SELECT {task}, result.error FROM task LEFT JOIN result ON result.seq = task.seq
WHERE task.lane = :lane AND task.state = 'parked' ORDER BY task.rank, task.seq LIMIT :limit

-- name: attention_edges
-- rows: seq int
SELECT rows.seq, d.parent, task.state FROM rows
JOIN dependency AS d ON d.child = rows.seq AND d.state = 0
LEFT JOIN task ON task.id = d.parent
WHERE task.seq IS NULL OR task.state = 'parked'

-- name: attention_jobs
SELECT id, name, consecutive_errors, last_error, last_run_at, enabled, disabled_reason FROM job
WHERE consecutive_errors > 0 ORDER BY consecutive_errors DESC, seq DESC LIMIT :limit

-- name: attention_webhooks
SELECT id, url, error, created_at FROM delivery
WHERE state = 'given_up' AND created_at >= :since
ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: attention_closed
SELECT resource, key, closed_until, reason FROM account
WHERE closed_until > 0 AND closed_until > :now ORDER BY closed_until DESC LIMIT :limit

-- name: attention_approvals
SELECT id, title, opened_at FROM approval WHERE state = 'open' ORDER BY seq LIMIT :limit
