-- Workers: what each can run, and when it was last there. At most a thousand are kept.

-- name: worker_list
SELECT name, server, routes, any_handler, lanes, agent, address, version, slots, patience_ms,
  first_seen_at, seen_at
FROM worker ORDER BY name

-- name: worker_save
-- rows: name text, server text, routes text, any_handler int, lanes text, agent text, address text, version text, slots int, patience_ms int, first_seen_at int, seen_at int
INSERT INTO worker (name, server, routes, any_handler, lanes, agent, address, version, slots, patience_ms, first_seen_at, seen_at)
SELECT * FROM rows WHERE true
ON CONFLICT (name) DO UPDATE SET server = excluded.server, routes = excluded.routes,
  any_handler = excluded.any_handler, lanes = excluded.lanes, agent = excluded.agent,
  address = excluded.address, version = excluded.version, slots = excluded.slots,
  patience_ms = excluded.patience_ms, seen_at = excluded.seen_at

-- name: worker_forget
DELETE FROM worker WHERE seen_at <= :before OR name IN (
  SELECT name FROM worker ORDER BY seen_at DESC LIMIT 1000000 OFFSET :limit)

-- name: worker_forget_nodes
DELETE FROM worker WHERE substr(name, 1, 5) = 'node_' AND name <> :name
