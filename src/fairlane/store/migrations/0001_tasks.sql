-- The first schema. {key}, {int}, {text}, {real} and {table} are spelled per database by migrate.py.
-- What never changes about a task (request) and what ends it (result) stand apart from the small
-- row that every transition rewrites (task).

CREATE TABLE scheduler (
  id {key},
  last_seq {int} NOT NULL,
  last_token {int} NOT NULL,
  policy_version {int} NOT NULL,
  webhook_secret {text}
) {table};
INSERT INTO scheduler (id, last_seq, last_token, policy_version) VALUES (1, 0, 0, 0);

-- The newest commit of each writer: how a writer finds out whether a commit whose answer was lost
-- did happen.
CREATE TABLE writer (
  name {text} NOT NULL PRIMARY KEY,
  commit_id {int} NOT NULL,
  seen_at {int} NOT NULL
) {table};

CREATE TABLE policy (
  version {key},
  document {text} NOT NULL,
  source {text} NOT NULL,
  created_at {int} NOT NULL
) {table};

CREATE TABLE request (
  seq {key},
  body {text} NOT NULL
) {table};

CREATE TABLE task (
  seq {key},
  id {text} NOT NULL UNIQUE,
  kind {text} NOT NULL,
  lane {text} NOT NULL,
  agent {text} NOT NULL,
  route {text} NOT NULL,
  line {text} NOT NULL,
  priority {int} NOT NULL,
  state {text} NOT NULL,
  gate {text},
  session {text},
  batch {text},
  attempts {int} NOT NULL,
  max_attempts {int} NOT NULL,
  position {int} NOT NULL,
  created_at {int} NOT NULL,
  deadline_at {int},
  eligible_at {int},
  queued_at {int} NOT NULL,
  started_at {int},
  completed_at {int},
  token {int} NOT NULL,
  worker {text},
  lease_expires_at {int},
  callback_url {text}
) {hot};

CREATE INDEX task_ready ON task (lane, line, route, priority, seq)
  WHERE state = 'queued' AND gate IS NULL;
CREATE INDEX task_session ON task (session, gate, priority, seq)
  WHERE session IS NOT NULL AND state = 'queued';
CREATE INDEX task_deadline ON task (deadline_at)
  WHERE deadline_at IS NOT NULL AND state IN ('queued', 'assigned', 'running');
CREATE INDEX task_delay ON task (eligible_at) WHERE gate = 'delay' AND state = 'queued';
CREATE INDEX task_lease ON task (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX task_ended ON task (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX task_rejected ON task (completed_at) WHERE state = 'rejected';
CREATE INDEX task_agent ON task (agent, seq);

CREATE TABLE result (
  seq {key},
  result {text},
  error {text}
) {table};

-- Counters. A lane's row is the sum of its lines; a line is one agent's tasks of one route there.
CREATE TABLE lane (
  name {text} NOT NULL PRIMARY KEY,
  queued {int} NOT NULL, ready {int} NOT NULL, urgent {int} NOT NULL, inflight {int} NOT NULL,
  slots {int} NOT NULL, parked {int} NOT NULL, submitted {int} NOT NULL, completed {int} NOT NULL,
  failed {int} NOT NULL, cancelled {int} NOT NULL, rejected {int} NOT NULL, expired {int} NOT NULL,
  dispatched {int} NOT NULL, waited_ms {int} NOT NULL
) {hot};

CREATE TABLE line (
  lane {text} NOT NULL,
  agent {text} NOT NULL,
  route {text} NOT NULL,
  queued {int} NOT NULL, ready {int} NOT NULL, urgent {int} NOT NULL, inflight {int} NOT NULL,
  slots {int} NOT NULL, parked {int} NOT NULL, submitted {int} NOT NULL, completed {int} NOT NULL,
  failed {int} NOT NULL, cancelled {int} NOT NULL, rejected {int} NOT NULL, expired {int} NOT NULL,
  dispatched {int} NOT NULL, waited_ms {int} NOT NULL,
  share {real} NOT NULL,
  served {int} NOT NULL,
  PRIMARY KEY (lane, agent, route)
) {hot_by_key};

CREATE INDEX line_order ON line (lane, route, share, served, agent) WHERE ready > 0;
CREATE INDEX line_urgent ON line (lane, route, share, served, agent) WHERE urgent > 0;

CREATE TABLE session (
  key {text} NOT NULL PRIMARY KEY,
  holders {int} NOT NULL,
  waiting {int} NOT NULL,
  max_concurrent {int} NOT NULL
) {hot_by_key};

CREATE TABLE idempotency (
  agent {text} NOT NULL,
  key {text} NOT NULL,
  digest {text} NOT NULL,
  answer {text} NOT NULL,
  seq {int} NOT NULL, -- the newest task it stands for: the key is forgotten with it
  created_at {int} NOT NULL,
  PRIMARY KEY (agent, key)
) {by_key};

CREATE INDEX idempotency_task ON idempotency (seq);

-- Webhooks owed. The body is made from the task when it is sent: a terminal task never changes.
CREATE TABLE delivery (
  id {text} NOT NULL PRIMARY KEY,
  seq {int} NOT NULL,
  url {text} NOT NULL,
  event {text} NOT NULL,
  state {text} NOT NULL,
  due_at {int} NOT NULL,
  attempts {int} NOT NULL,
  error {text},
  created_at {int} NOT NULL,
  settled_at {int}
) {table};

CREATE INDEX delivery_due ON delivery (due_at) WHERE state = 'due';
CREATE INDEX delivery_task ON delivery (seq);
