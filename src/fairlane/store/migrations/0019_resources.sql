-- Resources: what tasks need of them, what is taken, and who waits. `needs` are amounts in
-- micro-units as JSON, `wait` is the number of the line in which a task waits for them. Accounts,
-- lines, reservations and ledger entries get their numbers from `last_number`.
ALTER TABLE task ADD COLUMN needs {text};
ALTER TABLE task ADD COLUMN wait {int};
CREATE INDEX task_wait ON task (wait, rank, seq) WHERE gate = 'resource' AND state = 'queued';
ALTER TABLE scheduler ADD COLUMN last_number {int} NOT NULL DEFAULT 0;
ALTER TABLE scheduler ADD COLUMN reservations {int} NOT NULL DEFAULT 0;

-- One row for each resource and key, with the state of all its limits as JSON. `wake_at` is when
-- the first of the `blocked` lines may fit, `idle_at` from when on the row says nothing.
CREATE TABLE account (
  id {key},
  resource {text} NOT NULL,
  key {text} NOT NULL,
  states {text} NOT NULL,
  closed_until {int} NOT NULL,
  reason {text},
  urgent_until {int} NOT NULL,
  turn {real} NOT NULL,
  asked_at {int},
  blocked {int} NOT NULL,
  awake {int} NOT NULL,
  wake_at {int},
  idle_at {int}
) {hot};
CREATE UNIQUE INDEX account_name ON account (resource, key);
CREATE INDEX account_wake ON account (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX account_idle ON account (idle_at) WHERE idle_at IS NOT NULL;

-- The tasks of one agent and route in one lane that need the same accounts. `waiting` are behind
-- the gate, `awake` are ready; `account` is the one that the first of them waits for.
CREATE TABLE wait_line (
  id {key},
  lane {text} NOT NULL,
  agent {text} NOT NULL,
  route {text} NOT NULL,
  accounts {text} NOT NULL,
  waiting {int} NOT NULL,
  awake {int} NOT NULL,
  account {int},
  share {real} NOT NULL,
  since {int} NOT NULL,
  overtaken {int} NOT NULL
) {hot};
CREATE UNIQUE INDEX wait_line_name ON wait_line (lane, agent, route, accounts);
CREATE INDEX wait_line_order ON wait_line (account, share, since, id)
  WHERE account IS NOT NULL AND awake = 0;
CREATE INDEX wait_line_account ON wait_line (account, agent) WHERE account IS NOT NULL;
CREATE INDEX wait_line_idle ON wait_line (since)
  WHERE waiting = 0 AND awake = 0 AND account IS NULL;

-- What an open lease holds (permit 0), and each of its open permits.
CREATE TABLE reservation (
  id {key},
  seq {int} NOT NULL,
  token {int} NOT NULL,
  at {int} NOT NULL,
  held {text} NOT NULL,
  permit {int} NOT NULL
) {hot};
CREATE INDEX reservation_task ON reservation (seq);

-- Every change of used + reserved, in order; `balance` is the sum after it.
CREATE TABLE ledger (
  id {key},
  account {int} NOT NULL,
  slot {text} NOT NULL,
  at {int} NOT NULL,
  kind {text} NOT NULL,
  amount {int} NOT NULL,
  balance {int} NOT NULL,
  used {int} NOT NULL,
  seq {int},
  agent {text},
  detail {text}
) {table};
CREATE INDEX ledger_account ON ledger (account, id);
CREATE INDEX ledger_at ON ledger (at);

CREATE TABLE resource_usage (
  account {int} NOT NULL,
  unit {text} NOT NULL,
  agent {text} NOT NULL,
  day {int} NOT NULL,
  used {int} NOT NULL,
  settled {int} NOT NULL,
  PRIMARY KEY (account, unit, agent, day)
) {hot_by_key};
CREATE INDEX resource_usage_day ON resource_usage (day);
