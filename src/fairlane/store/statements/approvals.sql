-- Approvals and their one-time links.

-- name: approval_insert
-- rows: seq int, id text, task_seq int, task text, agent text, name text, title text, detail text, form text, approvers text, needed int, state text, opened_at int, expires_at int, expires_ms int, on_expiry text, submitter text, asker text, left_ms int, in_force int, resource text, votes text, answer text, comment text, decided_by text, decided_at int
INSERT INTO approval ({approval}) SELECT * FROM rows

-- name: approval_update
-- rows: seq int, was text, state text, in_force int, votes text, answer text, comment text, decided_by text, decided_at int
UPDATE approval SET state = rows.state, in_force = rows.in_force, votes = rows.votes,
  answer = rows.answer, comment = rows.comment, decided_by = rows.decided_by,
  decided_at = rows.decided_at
FROM rows WHERE approval.seq = rows.seq AND approval.state = rows.was

-- name: approval_by_id
-- rows: id text
SELECT {approval} FROM rows JOIN approval ON approval.id = rows.id

-- name: approval_by_seq
-- rows: seq int
SELECT {approval} FROM rows JOIN approval ON approval.seq = rows.seq

-- name: approval_of_tasks
-- rows: task_seq int
SELECT {approval} FROM rows JOIN approval ON approval.task_seq = rows.task_seq
WHERE approval.in_force = 1

-- name: approval_due
SELECT {approval} FROM approval
WHERE state = 'open' AND expires_at IS NOT NULL AND expires_at <= :now
ORDER BY expires_at LIMIT :limit

-- name: approval_of_resource
SELECT {approval} FROM approval WHERE resource = :resource AND resource IS NOT NULL
ORDER BY seq DESC LIMIT 1

-- name: approval_delete
-- rows: task_seq int
DELETE FROM approval WHERE task_seq IN (SELECT rows.task_seq FROM rows)

-- name: approval_link_delete
-- rows: task_seq int
DELETE FROM approval_link WHERE approval IN (
  SELECT approval.seq FROM rows JOIN approval ON approval.task_seq = rows.task_seq)

-- name: approval_delivery_delete
-- rows: task_seq int
DELETE FROM delivery WHERE seq IN (
  SELECT approval.seq FROM rows JOIN approval ON approval.task_seq = rows.task_seq)

-- name: approval_old
SELECT seq FROM approval
WHERE task_seq IS NULL AND state <> 'open' AND decided_at <= :before
  AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = approval.seq AND delivery.state = 'due')
ORDER BY decided_at LIMIT :limit

-- name: approval_forget
-- rows: seq int
DELETE FROM approval WHERE seq IN (SELECT rows.seq FROM rows)

-- name: approval_link_forget
-- rows: seq int
DELETE FROM approval_link WHERE approval IN (SELECT rows.seq FROM rows)

-- name: step_approvals
UPDATE approval SET expires_at = expires_at + :by WHERE state = 'open'

-- ------------------------------------------------------------------ links

-- name: approval_link_insert
-- rows: id text, approval int, digest text, hash text, approver text, created_by text, created_at int, expires_at int, used_at int
INSERT INTO approval_link ({approval_link}) SELECT * FROM rows

-- name: approval_link_find
SELECT {approval_link} FROM approval_link WHERE id = :id

-- name: approval_link_use
-- rows: id text, used_at int
UPDATE approval_link SET used_at = rows.used_at
FROM rows WHERE approval_link.id = rows.id AND approval_link.used_at IS NULL

-- name: step_approval_links
UPDATE approval_link SET expires_at = expires_at + :by WHERE used_at IS NULL

-- ------------------------------------------------------------------ reads

-- name: approval_view
SELECT {approval}, request.body FROM approval
LEFT JOIN request ON request.seq = approval.task_seq WHERE approval.id = :id

-- name: approval_view_many
-- rows: seq int
SELECT {approval}, request.body FROM rows JOIN approval ON approval.seq = rows.seq
LEFT JOIN request ON request.seq = approval.task_seq

-- name: approval_list
SELECT {approval}, request.body FROM approval
LEFT JOIN request ON request.seq = approval.task_seq
WHERE true
--? before: AND approval.seq < :before
--? state: AND approval.state = :state
--? task: AND approval.task_seq = (SELECT task.seq FROM task WHERE task.id = :task)
--? agent: AND (approval.agent = :agent OR approval.approvers LIKE :named ESCAPE '!' OR approval.approvers LIKE :also ESCAPE '!')
ORDER BY approval.seq DESC LIMIT :limit

-- name: approval_count
SELECT count(*) FROM (SELECT seq FROM approval WHERE state = 'open' LIMIT :limit) AS found

-- name: approval_count_of
SELECT count(*) FROM (
  SELECT seq FROM approval
  WHERE state = 'open'
    AND (agent = :agent OR approvers LIKE :named ESCAPE '!' OR approvers LIKE :also ESCAPE '!')
  LIMIT :limit) AS found

-- name: approval_recount
SELECT task.id, coalesce(task.unapproved, 0), coalesce(found.number, 0)
FROM task LEFT JOIN (
  SELECT task_seq, count(*) AS number FROM approval
  WHERE state = 'open' AND task_seq IS NOT NULL GROUP BY task_seq) AS found
  ON found.task_seq = task.seq
WHERE coalesce(task.unapproved, 0) <> coalesce(found.number, 0)
