-- Sessions of the page, and links that invite a person to it. Of a cookie and of a link only a hash is stored.

-- name: insert_session
INSERT INTO turnkeep.sessions AS s
       (id, org_id, workspace_id, user_id, secret_hash, method, browser, created_at, last_used_at, expires_at)
SELECT $1, m.org_id, m.workspace_id, m.id, $4, $5, $6, n.now, n.now, n.now + $7::bigint
  FROM turnkeep.members m, (SELECT turnkeep.now_ms() AS now) n WHERE m.org_id = $2 AND m.id = $3
ON CONFLICT (id) DO UPDATE SET secret_hash = excluded.secret_hash
RETURNING {s.session_columns}

-- name: delete_expired_sessions
DELETE FROM turnkeep.sessions WHERE expires_at <= turnkeep.now_ms()

-- name: session_by_hash
SELECT {s.session_columns}, {m.member_columns}, {w.workspace_columns}, s.secret_hash
  FROM turnkeep.sessions s
  JOIN turnkeep.members m ON m.id = s.user_id
  JOIN turnkeep.workspaces w ON w.id = s.workspace_id
 WHERE s.secret_hash = $1 AND s.expires_at > turnkeep.now_ms()

-- name: use_session
UPDATE turnkeep.sessions SET last_used_at = turnkeep.now_ms() WHERE id = $1

-- name: sessions_of_user
SELECT {s.session_columns} FROM turnkeep.sessions s
 WHERE s.user_id = $2 AND s.org_id = $1 AND s.expires_at > turnkeep.now_ms() ORDER BY s.id DESC

-- name: end_session
DELETE FROM turnkeep.sessions WHERE org_id = $1 AND user_id = $2 AND id = $3
RETURNING id

-- name: end_sessions
DELETE FROM turnkeep.sessions WHERE org_id = $1 AND user_id = $2 AND id IS DISTINCT FROM $3::text
RETURNING id

-- name: end_session_by_hash
DELETE FROM turnkeep.sessions WHERE secret_hash = $1

-- name: insert_invite
INSERT INTO turnkeep.invites AS i (id, org_id, workspace_id, user_id, secret_hash, created_at, expires_at)
SELECT $1, m.org_id, m.workspace_id, m.id, $4, n.now, n.now + $5::bigint
  FROM turnkeep.members m, (SELECT turnkeep.now_ms() AS now) n WHERE m.org_id = $2 AND m.id = $3
ON CONFLICT (id) DO UPDATE SET secret_hash = excluded.secret_hash
RETURNING {i.invite_columns}

-- name: delete_expired_invites
DELETE FROM turnkeep.invites WHERE expires_at <= turnkeep.now_ms()

-- name: invites
SELECT {i.invite_columns} FROM turnkeep.invites i
 WHERE i.workspace_id = $2 AND i.org_id = $1 AND i.used_at IS NULL AND i.expires_at > turnkeep.now_ms()
 ORDER BY i.id DESC

-- name: delete_invite
DELETE FROM turnkeep.invites WHERE org_id = $1 AND workspace_id = $2 AND id = $3 AND used_at IS NULL
RETURNING id

-- name: spend_invite
-- One statement, so that of many who come at once exactly one is let in. A repeat finds the session that was made.
WITH spent AS (
    UPDATE turnkeep.invites i SET used_at = turnkeep.now_ms()
     WHERE i.secret_hash = $1 AND i.used_at IS NULL AND i.expires_at > turnkeep.now_ms()
       AND EXISTS (SELECT 1 FROM turnkeep.members m WHERE m.id = i.user_id AND NOT m.is_disabled)
    RETURNING i.org_id, i.workspace_id, i.user_id
), made AS (
    INSERT INTO turnkeep.sessions AS s
           (id, org_id, workspace_id, user_id, secret_hash, method, browser, created_at, last_used_at, expires_at)
    SELECT $2, spent.org_id, spent.workspace_id, spent.user_id, $3, 'invite', $4, n.now, n.now, n.now + $5::bigint
      FROM spent, (SELECT turnkeep.now_ms() AS now) n
    RETURNING {s.session_columns}
)
SELECT {made.session_columns} FROM made
UNION ALL
SELECT {s.session_columns} FROM turnkeep.sessions s WHERE s.id = $2
