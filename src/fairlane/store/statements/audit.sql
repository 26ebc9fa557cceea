-- The audit log. Entries are only added; the oldest are deleted.

-- name: audit_insert
-- rows: id int, at int, who text, action text, target text, outcome text, detail text
INSERT INTO audit (id, at, who, action, target, outcome, detail) SELECT * FROM rows

-- name: audit_forget
DELETE FROM audit WHERE at < :before

-- name: audit_count
SELECT count(*) FROM audit

-- name: audit_most
-- The caller with the most entries, and their number. Entries from outside belong to no caller.
SELECT CASE WHEN outcome IN ('denied', 'blocked') THEN '' ELSE who END AS whose, count(*)
FROM audit GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1

-- name: audit_trim
DELETE FROM audit WHERE id IN (
  SELECT id FROM audit
  WHERE CASE WHEN outcome IN ('denied', 'blocked') THEN '' ELSE who END = :whose
  ORDER BY id LIMIT :limit
)

-- name: audit_list
SELECT id, at, who, action, target, outcome, detail FROM audit
WHERE true
--? before: AND id < :before
--? after: AND id > :after
--? who: AND who = :who
--? action: AND action = :action
--? outcome: AND outcome = :outcome
ORDER BY id DESC LIMIT :limit
