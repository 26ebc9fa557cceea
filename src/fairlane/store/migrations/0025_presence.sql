-- What shows that a node or a worker has died before its leases expire: the lock that a node holds in
-- PostgreSQL while it lives (NULL: it holds none), when others found that it had died, and the
-- connections that workers keep open.
ALTER TABLE node ADD COLUMN lock_key {int};
ALTER TABLE node ADD COLUMN gone_at {int};
CREATE TABLE presence (
  worker {text} NOT NULL,
  id {text} NOT NULL,
  agent {text} NOT NULL,
  server {text} NOT NULL,
  opened_at {int} NOT NULL,
  PRIMARY KEY (worker, id)
) {by_key};
