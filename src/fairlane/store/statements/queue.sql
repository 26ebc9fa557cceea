-- Reads of `sched` and `queue`: a plan's snapshot, and the lane `queue` in the order of its entries.

-- name: scheduler_view
SELECT last_seq, last_token, policy_version, last_line, last_event, open_edges, unsettled,
  last_number, reservations
FROM scheduler WHERE id = 1

-- name: task_held
SELECT {task} FROM task
WHERE lane = :lane AND coalesce(gate, '') = :gate AND coalesce(gate, '') <> ''
ORDER BY rank, seq LIMIT :limit

-- name: task_held_count
SELECT tried, count(*) FROM (
  SELECT CASE WHEN attempts > 0 THEN 1 ELSE 0 END AS tried FROM task
  WHERE lane = :lane AND coalesce(gate, '') = :gate AND coalesce(gate, '') <> ''
  ORDER BY rank, seq LIMIT :limit) AS found
GROUP BY tried ORDER BY tried

-- name: task_parked
SELECT {task} FROM task WHERE lane = :lane AND state = 'parked' ORDER BY rank, seq LIMIT :limit

-- name: task_ended_last
SELECT {task} FROM (
  SELECT seq FROM task WHERE completed_at IS NOT NULL
  ORDER BY completed_at DESC, seq DESC LIMIT :look) AS found
CROSS JOIN task WHERE task.seq = found.seq AND task.lane = :lane
ORDER BY task.rank, task.seq LIMIT :limit

-- Only the order: requests may be large and are read for one page.
-- name: entry_page_of @sqlite
-- rows: state text
SELECT task.rank, task.seq FROM rows
CROSS JOIN task ON task.seq IN (
  SELECT t.seq FROM task AS t
  WHERE t.lane = 'queue' AND t.state = rows.state AND (t.rank, t.seq) > (:rank, :seq)
    AND t.agent = :agent
  ORDER BY t.rank, t.seq LIMIT :limit)
-- name: entry_page_of @postgres
-- rows: state text
SELECT task.rank, task.seq FROM rows
CROSS JOIN LATERAL (
  SELECT t.rank, t.seq FROM task AS t
  WHERE t.lane = 'queue' AND t.state = rows.state AND (t.rank, t.seq) > (:rank, :seq)
    AND t.agent = :agent
  ORDER BY t.rank, t.seq LIMIT :limit) AS task

-- name: entry_page @sqlite
-- rows: state text
SELECT task.rank, task.seq FROM rows
CROSS JOIN task ON task.seq IN (
  SELECT t.seq FROM task AS t
  WHERE t.lane = 'queue' AND t.state = rows.state AND (t.rank, t.seq) > (:rank, :seq)
  ORDER BY t.rank, t.seq LIMIT :limit)
-- name: entry_page @postgres
-- rows: state text
SELECT task.rank, task.seq FROM rows
CROSS JOIN LATERAL (
  SELECT t.rank, t.seq FROM task AS t
  WHERE t.lane = 'queue' AND t.state = rows.state AND (t.rank, t.seq) > (:rank, :seq)
  ORDER BY t.rank, t.seq LIMIT :limit) AS task
