-- What suspended runs wait for: one row for each such task, the tasks that it awaits, and the
-- signals that it got. A wait for a time uses the index of delays.
CREATE TABLE suspension (
  seq {key},
  number {int} NOT NULL,
  name {text} NOT NULL,
  until {text} NOT NULL,
  span {int} NOT NULL
) {hot};
CREATE TABLE awaiting (
  parent {text} NOT NULL,
  seq {int} NOT NULL,
  PRIMARY KEY (parent, seq)
) {hot_by_key};
CREATE INDEX awaiting_of ON awaiting (seq);
CREATE TABLE signal (
  seq {int} NOT NULL,
  name {text} NOT NULL,
  value {text} NOT NULL,
  at {int} NOT NULL,
  PRIMARY KEY (seq, name)
) {hot_by_key};
DROP INDEX task_delay;
CREATE INDEX task_delay ON task (eligible_at)
  WHERE gate IN ('delay', 'debounce', 'suspend') AND state = 'queued';
