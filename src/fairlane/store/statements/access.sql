-- Access tokens.

-- name: access_version
SELECT access_version FROM scheduler WHERE id = 1

-- name: access_changed
UPDATE scheduler SET access_version = access_version + 1 WHERE id = 1

-- name: token_insert
-- rows: seq int, id text, name text, digest text, scopes text, created_at int, agent text, expires_at int, revoked_at int, last_used_at int, rate text, max_open int, parent text
INSERT INTO token ({token}) SELECT * FROM rows

-- name: token_all
SELECT {token} FROM token ORDER BY seq

-- name: token_find
-- rows: id text
SELECT {token} FROM rows JOIN token ON token.id = rows.id

-- name: token_revoke
-- rows: id text, revoked_at int
UPDATE token SET revoked_at = rows.revoked_at FROM rows WHERE token.id = rows.id

-- name: token_use
-- rows: id text, last_used_at int
UPDATE token SET last_used_at = rows.last_used_at FROM rows
WHERE token.id = rows.id AND coalesce(token.last_used_at, 0) < rows.last_used_at

-- name: token_forget
-- rows: id text
DELETE FROM token WHERE id IN (SELECT rows.id FROM rows)
