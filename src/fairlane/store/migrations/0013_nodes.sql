-- The processes that serve from this store: who they are, and when they last said that they are there.
CREATE TABLE node (
  name {text} NOT NULL PRIMARY KEY,
  host {text} NOT NULL,
  pid {int} NOT NULL,
  version {text} NOT NULL,
  started_at {int} NOT NULL,
  seen_at {int} NOT NULL,
  draining {int} NOT NULL
) {table};
