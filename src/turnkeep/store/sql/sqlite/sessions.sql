-- Sessions of the page, and links that invite a person to it. Of a cookie and of a link only a hash is stored.

-- name: insert_session
INSERT INTO sessions (id, org_id, workspace_id, user_id, secret_hash, method, browser, created_at, last_used_at,
                      expires_at)
SELECT :id, org_id, workspace_id, id, :hash, :method, :browser, :now, :now, :expires_at
  FROM members WHERE org_id = :org AND id = :user
RETURNING {session_columns};

-- name: delete_expired_sessions
DELETE FROM sessions WHERE expires_at <= :now;

-- name: session_by_hash
SELECT {s.session_columns}, {m.member_columns}, {w.workspace_columns}, s.secret_hash
  FROM sessions s JOIN members m ON m.id = s.user_id JOIN workspaces w ON w.id = s.workspace_id
 WHERE s.secret_hash = :hash AND s.expires_at > :now;

-- name: use_session
UPDATE sessions SET last_used_at = :now WHERE id = :id;

-- name: sessions_of_user
SELECT {session_columns} FROM sessions
 WHERE user_id = :user AND org_id = :org AND expires_at > :now ORDER BY id DESC;

-- name: end_session
DELETE FROM sessions WHERE org_id = :org AND user_id = :user AND id = :id;

-- name: end_sessions
DELETE FROM sessions WHERE org_id = :org AND user_id = :user AND id IS NOT :kept;

-- name: end_session_by_hash
DELETE FROM sessions WHERE secret_hash = :hash;

-- name: insert_invite
INSERT INTO invites (id, org_id, workspace_id, user_id, secret_hash, created_at, expires_at)
SELECT :id, org_id, workspace_id, id, :hash, :now, :expires_at FROM members WHERE org_id = :org AND id = :user
RETURNING {invite_columns};

-- name: delete_expired_invites
DELETE FROM invites WHERE expires_at <= :now;

-- name: invites
SELECT {invite_columns} FROM invites
 WHERE workspace_id = :workspace AND org_id = :org AND used_at IS NULL AND expires_at > :now ORDER BY id DESC;

-- name: delete_invite
DELETE FROM invites WHERE org_id = :org AND workspace_id = :workspace AND id = :id AND used_at IS NULL;

-- name: spend_invite
-- One statement, so that of many who come at once exactly one is let in.
UPDATE invites SET used_at = :now
 WHERE secret_hash = :hash AND used_at IS NULL AND expires_at > :now
   AND EXISTS (SELECT 1 FROM members m WHERE m.id = invites.user_id AND NOT m.is_disabled)
RETURNING org_id, user_id;
