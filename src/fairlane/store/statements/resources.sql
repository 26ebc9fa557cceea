-- Resources: accounts, the lines that wait for them, reservations, the ledger. `tables/resources.py`.

-- name: account_find
-- rows: resource text, key text
SELECT {account} FROM rows JOIN account ON account.resource = rows.resource AND account.key = rows.key

-- name: account_by_id
-- rows: id int
SELECT {account} FROM rows JOIN account ON account.id = rows.id

-- name: account_of_resource
SELECT {account} FROM account WHERE resource = :resource ORDER BY key

-- name: account_page
SELECT {account} FROM account WHERE resource = :resource
--? after: AND key > :after
--? key: AND key = :key
--? own: AND (key = :own OR substr(key, 1, 6) <> 'agent:')
ORDER BY key LIMIT :limit

-- name: account_oldest
SELECT {account} FROM account ORDER BY id LIMIT :limit

-- name: account_all
SELECT {account} FROM account ORDER BY resource, key

-- name: account_due
SELECT {account} FROM account WHERE wake_at IS NOT NULL AND wake_at <= :now
ORDER BY wake_at, id LIMIT :limit

-- name: account_next
SELECT min(wake_at) FROM account WHERE wake_at IS NOT NULL

-- name: account_save
-- rows: id int, resource text, key text, states text, closed_until int, reason text, urgent_until int, turn real, asked_at int, blocked int, awake int, wake_at int, idle_at int
INSERT INTO account (id, resource, key, states, closed_until, reason, urgent_until, turn, asked_at, blocked, awake, wake_at, idle_at)
SELECT * FROM rows WHERE true
ON CONFLICT (id) DO UPDATE SET states = excluded.states, closed_until = excluded.closed_until,
  reason = excluded.reason, urgent_until = excluded.urgent_until, turn = excluded.turn,
  asked_at = excluded.asked_at, blocked = excluded.blocked, awake = excluded.awake,
  wake_at = excluded.wake_at, idle_at = excluded.idle_at

-- name: account_forget
DELETE FROM account WHERE id IN (
  SELECT id FROM account
  WHERE idle_at IS NOT NULL AND idle_at <= :before AND blocked = 0 AND awake = 0
    AND NOT EXISTS (SELECT 1 FROM ledger WHERE ledger.account = account.id)
    AND NOT EXISTS (SELECT 1 FROM resource_usage WHERE resource_usage.account = account.id)
  ORDER BY idle_at LIMIT :limit)

-- name: wait_line_find
-- rows: lane text, agent text, route text, accounts text
SELECT {wait_line} FROM rows JOIN wait_line ON wait_line.lane = rows.lane
  AND wait_line.agent = rows.agent AND wait_line.route = rows.route
  AND wait_line.accounts = rows.accounts

-- name: wait_line_by_id
-- rows: id int
SELECT {wait_line} FROM rows JOIN wait_line ON wait_line.id = rows.id

-- name: wait_line_all
SELECT {wait_line} FROM wait_line ORDER BY id

-- name: wait_line_first
SELECT {wait_line} FROM wait_line WHERE account = :account AND awake = 0
ORDER BY share, since, id LIMIT :limit

-- name: wait_line_of_agent
SELECT {wait_line} FROM wait_line WHERE account = :account AND agent = :agent

-- name: wait_line_count_of
-- rows: account int
SELECT wait_line.account, sum(wait_line.waiting) FROM rows
JOIN wait_line ON wait_line.account = rows.account GROUP BY wait_line.account

-- name: wait_line_save
-- rows: id int, lane text, agent text, route text, accounts text, waiting int, awake int, account int, share real, since int, overtaken int
INSERT INTO wait_line (id, lane, agent, route, accounts, waiting, awake, account, share, since, overtaken)
SELECT * FROM rows WHERE true
ON CONFLICT (id) DO UPDATE SET waiting = excluded.waiting, awake = excluded.awake,
  account = excluded.account, share = excluded.share, since = excluded.since,
  overtaken = excluded.overtaken

-- name: wait_line_forget
DELETE FROM wait_line WHERE id IN (
  SELECT id FROM wait_line WHERE waiting = 0 AND awake = 0 AND account IS NULL AND since <= :before
  ORDER BY since LIMIT :limit)

-- name: wait_line_recount
SELECT wait, sum(CASE WHEN gate = 'resource' THEN 1 ELSE 0 END),
  sum(CASE WHEN gate IS NULL THEN 1 ELSE 0 END)
FROM task WHERE wait IS NOT NULL AND state = 'queued' GROUP BY wait

-- name: task_waiting @sqlite
-- rows: wait int
SELECT {task} FROM rows
CROSS JOIN task ON task.seq IN (
  SELECT t.seq FROM task AS t
  WHERE t.wait = rows.wait AND t.gate = 'resource' AND t.state = 'queued'
  ORDER BY t.rank, t.seq LIMIT :limit)
-- name: task_waiting @postgres
-- rows: wait int
SELECT {task} FROM rows
CROSS JOIN LATERAL (
  SELECT * FROM task AS t
  WHERE t.wait = rows.wait AND t.gate = 'resource' AND t.state = 'queued'
  ORDER BY t.rank, t.seq LIMIT :limit) AS task

-- name: task_move
-- rows: seq int, wait int
UPDATE task SET wait = rows.wait FROM rows WHERE task.seq = rows.seq

-- name: reservation_find
-- rows: seq int
SELECT {reservation} FROM rows JOIN reservation ON reservation.seq = rows.seq

-- name: reservation_of_account
SELECT {reservation} FROM reservation JOIN task ON task.seq = reservation.seq
WHERE reservation.held LIKE :held
--? agent: AND task.agent = :agent
ORDER BY reservation.id LIMIT :limit

-- name: reservation_all
SELECT {reservation} FROM reservation ORDER BY id

-- name: reservation_insert
-- rows: id int, seq int, token int, at int, held text, permit int
INSERT INTO reservation (id, seq, token, at, held, permit) SELECT * FROM rows

-- name: reservation_delete
-- rows: id int
DELETE FROM reservation WHERE id IN (SELECT rows.id FROM rows)

-- name: ledger_insert
-- rows: id int, account int, slot text, at int, kind text, amount int, balance int, used int, seq int, agent text, detail text
INSERT INTO ledger (id, account, slot, at, kind, amount, balance, used, seq, agent, detail)
SELECT * FROM rows

-- name: ledger_list
SELECT {entry}, task.id FROM ledger LEFT JOIN task ON task.seq = ledger.seq
WHERE ledger.account = :account AND ledger.id > :after
--? slot: AND ledger.slot = :slot
--? agent: AND ledger.agent = :agent
ORDER BY ledger.id LIMIT :limit

-- name: ledger_sums
SELECT account, slot, sum(amount), min(id), max(id) FROM ledger GROUP BY account, slot

-- name: ledger_by_id
-- rows: id int
SELECT {entry} FROM rows JOIN ledger ON ledger.id = rows.id

-- name: ledger_prune
DELETE FROM ledger WHERE id IN (SELECT id FROM ledger WHERE at <= :before ORDER BY at LIMIT :limit)

-- name: ledger_due
SELECT count(*) FROM (SELECT 1 FROM ledger WHERE at <= :before LIMIT :limit) AS found

-- name: usage_add
-- rows: account int, unit text, agent text, day int, used int, settled int
INSERT INTO resource_usage (account, unit, agent, day, used, settled) SELECT * FROM rows WHERE true
ON CONFLICT (account, unit, agent, day) DO UPDATE SET
  used = CASE WHEN resource_usage.used > 4000000000000000000 THEN resource_usage.used
    ELSE resource_usage.used + excluded.used END,
  settled = resource_usage.settled + excluded.settled

-- name: usage_list
SELECT account.resource, account.key, u.unit, u.agent, u.day, u.used, u.settled
FROM resource_usage AS u JOIN account ON account.id = u.account
WHERE account.resource = :resource AND u.day >= :first AND u.day <= :last
--? key: AND account.key = :key
--? agent: AND u.agent = :agent
ORDER BY u.day, u.agent, account.key, u.unit

-- name: usage_of_agents
-- rows: resource text, prefix text
SELECT resource, unit, CASE WHEN place <= :limit THEN agent END AS name, sum(used) FROM (
  SELECT resource, unit, agent, used,
    row_number() OVER (PARTITION BY resource, unit ORDER BY used DESC, agent) AS place
  FROM (
    SELECT account.resource, u.unit, u.agent, sum(u.used * 1.0) AS used
    FROM resource_usage AS u
    JOIN account ON account.id = u.account
    JOIN rows ON rows.resource = account.resource
      AND substr(account.key, 1, length(rows.prefix)) = rows.prefix
    WHERE u.day = :first
    GROUP BY account.resource, u.unit, u.agent) AS found) AS found
GROUP BY resource, unit, name ORDER BY resource, unit, name

-- name: usage_prune
DELETE FROM resource_usage WHERE day < :before

-- name: ledger_newest
SELECT {entry}, task.id FROM ledger LEFT JOIN task ON task.seq = ledger.seq
WHERE ledger.account = :account
--? before: AND ledger.id < :before
--? unit: AND (ledger.slot = :unit OR substr(ledger.slot, 1, length(:unit) + 1) = :unit || ':')
--? agent: AND ledger.agent = :agent
ORDER BY ledger.id DESC LIMIT :limit
