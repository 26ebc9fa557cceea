-- Lines get a number, and tasks stand in a line by its number: the index of ready tasks shrinks to
-- a fraction, so that leasing from many agents touches few pages. `rank` is a task's place in its
-- line. A lane ordered by priority has a line without an agent for each route.

ALTER TABLE line ADD COLUMN id {int} NOT NULL DEFAULT 0;
UPDATE line SET id = numbered.number FROM (
  SELECT lane, agent, route, row_number() OVER (ORDER BY lane, agent, route) AS number FROM line
) AS numbered
WHERE line.lane = numbered.lane AND line.agent = numbered.agent AND line.route = numbered.route;
INSERT INTO line (lane, agent, route, queued, ready, urgent, inflight, slots, parked, submitted,
  completed, failed, cancelled, rejected, expired, dispatched, waited_ms, share, served, id)
SELECT lane, '', route, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
  (SELECT count(*) FROM line) + row_number() OVER (ORDER BY lane, route)
FROM task WHERE line = '' GROUP BY lane, route;
ALTER TABLE scheduler ADD COLUMN last_line {int} NOT NULL DEFAULT 0;
UPDATE scheduler SET last_line = (SELECT count(*) FROM line);

DROP INDEX task_ready;
ALTER TABLE task ADD COLUMN rank {int} NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN line_id {int} NOT NULL DEFAULT 0;
UPDATE task SET rank = priority;
UPDATE task SET line_id = line.id FROM line
WHERE line.lane = task.lane AND line.agent = task.line AND line.route = task.route;
ALTER TABLE task DROP COLUMN line;
ALTER TABLE task RENAME COLUMN line_id TO line;
CREATE INDEX task_ready ON task (line, rank, seq) WHERE state = 'queued' AND gate IS NULL;
