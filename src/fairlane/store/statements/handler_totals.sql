-- Totals of handlers by hour and agent.

-- name: totals_find
-- rows: hour int, route text, agent text
SELECT h.hour, h.route, h.agent, h.starts, h.done, h.failed, h.parked, h.retried, h.cancelled,
  h.runs, h.waited_ms, h.ran_ms, h.waits, h.durations
FROM rows JOIN handler_hour AS h
  ON h.hour = rows.hour AND h.route = rows.route AND h.agent = rows.agent

-- name: totals_save
-- rows: hour int, route text, agent text, starts int, done int, failed int, parked int, retried int, cancelled int, runs int, waited_ms int, ran_ms int, waits text, durations text
INSERT INTO handler_hour (hour, route, agent, starts, done, failed, parked, retried, cancelled,
  runs, waited_ms, ran_ms, waits, durations)
SELECT * FROM rows WHERE true
ON CONFLICT (hour, route, agent) DO UPDATE SET starts = excluded.starts, done = excluded.done,
  failed = excluded.failed, parked = excluded.parked, retried = excluded.retried,
  cancelled = excluded.cancelled, runs = excluded.runs, waited_ms = excluded.waited_ms,
  ran_ms = excluded.ran_ms, waits = excluded.waits, durations = excluded.durations

-- name: totals_since
SELECT hour, route, agent, starts, done, failed, parked, retried, cancelled, runs, waited_ms,
  ran_ms, waits, durations
FROM handler_hour WHERE hour >= :since
--? agent: AND agent = :agent
--? capability: AND route = :capability
ORDER BY hour, route, agent LIMIT :limit

-- name: totals_forget
DELETE FROM handler_hour WHERE hour < :before
