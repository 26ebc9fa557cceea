-- Questions to people: what was asked, who may decide and who did. Lists of names, forms, votes and
-- answers are JSON. The indexes of open ones are partial: the decided ones cost nothing there.
CREATE TABLE approval (
  seq {key},
  id {text} NOT NULL UNIQUE,
  task_seq {int},
  task {text},
  agent {text} NOT NULL,
  name {text} NOT NULL,
  title {text} NOT NULL,
  detail {text},
  form {text},
  approvers {text},
  needed {int} NOT NULL,
  state {text} NOT NULL,
  opened_at {int} NOT NULL,
  expires_at {int},
  expires_ms {int},
  on_expiry {text} NOT NULL,
  submitter {text},
  asker {text},
  left_ms {int},
  in_force {int} NOT NULL,
  resource {text},
  votes {text} NOT NULL,
  answer {text},
  comment {text},
  decided_by {text},
  decided_at {int}
) {table};
CREATE INDEX approval_state ON approval (state, seq);
CREATE INDEX approval_agent ON approval (agent, seq);
CREATE INDEX approval_task ON approval (task_seq) WHERE task_seq IS NOT NULL;
CREATE INDEX approval_due ON approval (expires_at) WHERE state = 'open' AND expires_at IS NOT NULL;
CREATE INDEX approval_old ON approval (decided_at) WHERE task_seq IS NULL AND state <> 'open';
CREATE INDEX approval_resource ON approval (resource, seq) WHERE resource IS NOT NULL;
-- One-time links: a digest of the secret in the address, and the hash of what it lets decide about.
CREATE TABLE approval_link (
  id {text} NOT NULL PRIMARY KEY,
  approval {int} NOT NULL,
  digest {text} NOT NULL,
  hash {text} NOT NULL,
  approver {text} NOT NULL,
  created_by {text} NOT NULL,
  created_at {int} NOT NULL,
  expires_at {int} NOT NULL,
  used_at {int}
) {table};
CREATE INDEX approval_link_of ON approval_link (approval);
-- Whether a task waits for a decision, and the token that submitted it: that one does not decide.
ALTER TABLE task ADD COLUMN unapproved {int};
ALTER TABLE request ADD COLUMN submitter {text};
ALTER TABLE job ADD COLUMN submitter {text};
