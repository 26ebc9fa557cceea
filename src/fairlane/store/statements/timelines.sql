-- Timelines of tasks, and the progress that they reported.

-- name: event_whole
-- rows: seq int
SELECT {event} FROM rows JOIN event ON event.seq = rows.seq AND event.type <> 'task.progress'

-- name: batch_oldest
SELECT seq FROM task WHERE batch = :batch ORDER BY seq LIMIT :limit

-- name: progress_newest
-- rows: seq int
SELECT event.seq, event.detail FROM rows JOIN event ON event.id = (
  SELECT max(e.id) FROM event AS e WHERE e.seq = rows.seq AND e.type = 'task.progress')
