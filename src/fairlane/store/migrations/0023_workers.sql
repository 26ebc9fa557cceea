-- The workers that ask for leases, external ones and those inside servers: what each can run, and
-- when it was last there. Written in commits that happen anyway, so it may lag by a few seconds.
CREATE TABLE worker (
  name {text} NOT NULL PRIMARY KEY,
  server {text} NOT NULL,
  routes {text} NOT NULL,
  any_handler {int} NOT NULL,
  lanes {text},
  agent {text},
  address {text},
  version {text},
  slots {int},
  patience_ms {int} NOT NULL,
  first_seen_at {int} NOT NULL,
  seen_at {int} NOT NULL
) {table};
CREATE INDEX worker_seen ON worker (seen_at);
