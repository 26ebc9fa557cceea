-- Dependencies, batches, events and output.

ALTER TABLE scheduler ADD COLUMN last_event {int} NOT NULL DEFAULT 0;
-- Edges that are open, and parents whose end has not reached all of their children yet: while both
-- are zero, nothing has to be looked up when a task ends.
ALTER TABLE scheduler ADD COLUMN open_edges {int} NOT NULL DEFAULT 0;
ALTER TABLE scheduler ADD COLUMN unsettled {int} NOT NULL DEFAULT 0;

ALTER TABLE task ADD COLUMN unmet {int};
ALTER TABLE task ADD COLUMN preempt {int};

DROP INDEX task_deadline;
CREATE INDEX task_deadline ON task (deadline_at)
  WHERE deadline_at IS NOT NULL AND state IN ('waiting_dependency', 'queued', 'assigned', 'running');
CREATE INDEX task_batch ON task (batch) WHERE batch IS NOT NULL;
CREATE INDEX task_preempt ON task (lane)
  WHERE preempt IS NOT NULL AND lease_expires_at IS NOT NULL;

-- `state`: 0 open, 1 met, 2 broken. The parent may not exist (yet), so it is named by its id.
CREATE TABLE dependency (
  child {int} NOT NULL,
  parent {text} NOT NULL,
  state {int} NOT NULL,
  PRIMARY KEY (child, parent)
) {by_key};

CREATE INDEX dependency_parent ON dependency (parent, state, child);

CREATE TABLE unsettled (
  parent {text} NOT NULL PRIMARY KEY,
  edges {int} NOT NULL, -- the state its edges go to
  state {text} NOT NULL -- what became of the parent
) {by_key};

CREATE TABLE batch (
  id {text} NOT NULL PRIMARY KEY,
  seq {int} NOT NULL,
  agent {text} NOT NULL,
  parallelism {int},
  total {int} NOT NULL,
  created_at {int} NOT NULL,
  callback_url {text},
  open {int} NOT NULL,
  holders {int} NOT NULL,
  waiting {int} NOT NULL,
  cancelled {int} NOT NULL,
  completed_at {int}
) {hot_by_key};

CREATE UNIQUE INDEX batch_seq ON batch (seq);
-- `seq` is from the tasks' sequence; batches from before get a number that no task can have.
INSERT INTO batch
SELECT batch, -min(seq), min(agent), NULL, count(*), min(created_at), NULL,
  sum(CASE WHEN state IN ('queued', 'assigned', 'running', 'parked') THEN 1 ELSE 0 END),
  sum(CASE WHEN lease_expires_at IS NOT NULL OR (state = 'queued' AND gate IS NULL) THEN 1 ELSE 0 END),
  0, 0,
  CASE WHEN sum(CASE WHEN state IN ('queued', 'assigned', 'running', 'parked') THEN 1 ELSE 0 END) = 0
    THEN max(completed_at) END
FROM task WHERE batch IS NOT NULL GROUP BY batch;

CREATE TABLE event (
  id {key},
  seq {int},
  at {int} NOT NULL,
  type {text} NOT NULL,
  attempt {int} NOT NULL,
  detail {text},
  batch {text}
) {table};

CREATE INDEX event_task ON event (seq);
CREATE INDEX event_batch ON event (batch) WHERE batch IS NOT NULL;

CREATE TABLE output (
  seq {int} NOT NULL,
  token {int} NOT NULL,
  part {int} NOT NULL,
  attempt {int} NOT NULL,
  text {text} NOT NULL,
  PRIMARY KEY (seq, token, part)
) {by_key};
