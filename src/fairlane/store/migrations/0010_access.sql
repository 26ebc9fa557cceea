-- Tokens, and the log of what was done by whom. Of a token only a digest of its secret is kept; a
-- login is a token of its own that names the one it stands for. `access_version` moves with every
-- change of a token, so that each node knows when to read them again.
ALTER TABLE scheduler ADD COLUMN access_version {int} NOT NULL DEFAULT 0;
CREATE TABLE token (
  seq {key},
  id {text} NOT NULL UNIQUE,
  name {text} NOT NULL,
  digest {text} NOT NULL,
  scopes {text} NOT NULL,
  created_at {int} NOT NULL,
  agent {text},
  expires_at {int},
  revoked_at {int},
  last_used_at {int},
  rate {text},
  max_open {int},
  parent {text}
) {table};
CREATE TABLE audit (
  id {key},
  at {int} NOT NULL,
  who {text} NOT NULL,
  action {text} NOT NULL,
  target {text} NOT NULL,
  outcome {text} NOT NULL,
  detail {text}
) {table};
CREATE INDEX audit_at ON audit (at);
-- Whose a session is: the agent whose task came first. No other agent's token gets at it.
ALTER TABLE session ADD COLUMN agent {text};
UPDATE session SET agent = (SELECT min(task.agent) FROM task WHERE task.session = session.key
  AND task.lease_expires_at IS NOT NULL);
UPDATE session SET agent = (SELECT min(task.agent) FROM task WHERE task.session = session.key
  AND task.state = 'queued')
WHERE agent IS NULL;
