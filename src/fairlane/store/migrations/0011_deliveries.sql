-- Whose a webhook is, what the receiver answered last, and the log of tries: a line of JSON each.
ALTER TABLE delivery ADD COLUMN agent {text} NOT NULL DEFAULT '';
ALTER TABLE delivery ADD COLUMN status {int};
ALTER TABLE delivery ADD COLUMN log {text} NOT NULL DEFAULT '';
UPDATE delivery SET agent = coalesce(
  (SELECT task.agent FROM task WHERE task.seq = delivery.seq),
  (SELECT batch.agent FROM batch WHERE batch.seq = delivery.seq),
  (SELECT job.agent FROM run JOIN job ON job.id = run.job_id WHERE run.seq = delivery.seq), '');
CREATE INDEX delivery_made ON delivery (created_at, id);
CREATE INDEX delivery_agent ON delivery (agent, created_at, id);
CREATE INDEX delivery_state ON delivery (state, created_at, id);

-- Receivers with a secret of their own; both secrets are sealed. Agent '' stands for all agents.
CREATE TABLE endpoint (
  seq {key},
  id {text} NOT NULL UNIQUE,
  agent {text} NOT NULL,
  url {text} NOT NULL,
  created_at {int} NOT NULL,
  rotated_at {int},
  previous_until {int},
  disabled_at {int},
  secret {text} NOT NULL,
  previous {text}
) {table};
CREATE UNIQUE INDEX endpoint_url ON endpoint (agent, url);
