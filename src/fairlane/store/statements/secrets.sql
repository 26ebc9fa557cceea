-- Sealed values to seal again after a key change. Tasks are not included: their retention ends.

-- name: sealed_all
SELECT 'template' AS what, id, definition AS first, NULL AS second FROM template
WHERE definition LIKE :text
UNION ALL
SELECT 'job', id, definition, NULL FROM job WHERE definition LIKE :text
UNION ALL
SELECT 'endpoint', id, secret, previous FROM endpoint

-- name: template_reseal
-- rows: id text, definition text
UPDATE template SET definition = rows.definition FROM rows WHERE template.id = rows.id

-- name: job_reseal
-- rows: id text, definition text
UPDATE job SET definition = rows.definition FROM rows WHERE job.id = rows.id

-- name: endpoint_reseal
-- rows: id text, secret text, previous text
UPDATE endpoint SET secret = rows.secret, previous = rows.previous
FROM rows WHERE endpoint.id = rows.id
