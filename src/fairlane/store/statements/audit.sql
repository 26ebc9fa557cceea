-- The audit log. Entries are only ever added; the oldest go.

-- name: audit_insert
-- rows: id int, at int, who text, action text, target text, outcome text, detail text
INSERT INTO audit (id, at, who, action, target, outcome, detail) SELECT * FROM rows

-- name: audit_forget
DELETE FROM audit WHERE at < :before

-- name: audit_trim
DELETE FROM audit WHERE id <= (SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET :limit)

-- name: audit_list
SELECT id, at, who, action, target, outcome, detail FROM audit
WHERE true
--? before: AND id < :before
--? after: AND id > :after
--? who: AND who = :who
--? action: AND action = :action
--? outcome: AND outcome = :outcome
ORDER BY id DESC LIMIT :limit
