-- Lines get a number, and tasks stand in a line by its number: the index of ready tasks shrinks to
-- a fraction, so that leasing from many agents touches few pages. `rank` is a task's place in its
-- line. A lane ordered by priority has a line without an agent for each route.

ALTER TABLE line RENAME TO old_line;
DROP INDEX line_order;
DROP INDEX line_urgent;
CREATE TABLE line (
  id {key},
  lane {text} NOT NULL,
  agent {text} NOT NULL,
  route {text} NOT NULL,
  queued {int} NOT NULL, ready {int} NOT NULL, urgent {int} NOT NULL, inflight {int} NOT NULL,
  slots {int} NOT NULL, parked {int} NOT NULL, submitted {int} NOT NULL, completed {int} NOT NULL,
  failed {int} NOT NULL, cancelled {int} NOT NULL, rejected {int} NOT NULL, expired {int} NOT NULL,
  dispatched {int} NOT NULL, waited_ms {int} NOT NULL,
  share {real} NOT NULL,
  served {int} NOT NULL
) {hot};
INSERT INTO line (id, lane, agent, route, queued, ready, urgent, inflight, slots, parked, submitted,
  completed, failed, cancelled, rejected, expired, dispatched, waited_ms, share, served)
SELECT row_number() OVER (ORDER BY lane, agent, route), lane, agent, route, queued, ready, urgent,
  inflight, slots, parked, submitted, completed, failed, cancelled, rejected, expired, dispatched,
  waited_ms, share, served
FROM old_line;
INSERT INTO line (id, lane, agent, route, queued, ready, urgent, inflight, slots, parked, submitted,
  completed, failed, cancelled, rejected, expired, dispatched, waited_ms, share, served)
SELECT (SELECT count(*) FROM old_line) + row_number() OVER (ORDER BY lane, route), lane, '', route,
  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
FROM task WHERE line = '' GROUP BY lane, route;
DROP TABLE old_line;
CREATE UNIQUE INDEX line_name ON line (lane, agent, route);
CREATE INDEX line_order ON line (lane, route, share, served, agent) WHERE ready > 0;
CREATE INDEX line_urgent ON line (lane, route, share, served, agent) WHERE urgent > 0;
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
