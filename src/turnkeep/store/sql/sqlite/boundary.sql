-- What the client path may see: one query for each public view. Each becomes an inner view with a random name, which
-- the public view of this name reads. The functions return the caller; unset, they return NULL, and NULL sees
-- nothing. `turnkeep_is_service()` is 1 only for a service that acts for no user: it sees its whole workspace.

-- name: my_conversations
-- Conversations of the one who asks.
SELECT c.org_id, {c.conversation_columns}
  FROM main.conversations c
 WHERE c.org_id = turnkeep_org() AND c.workspace_id = turnkeep_workspace() AND c.deleted_at IS NULL
   AND (c.user_id = turnkeep_user() OR turnkeep_is_service() = 1)

-- name: my_turns
-- Turns of those conversations, on every branch.
SELECT {t.turn_columns}
  FROM main.turns t
 WHERE t.org_id = turnkeep_org()
   AND EXISTS (SELECT 1 FROM main.conversations c
                WHERE c.id = t.conversation_id AND c.org_id = turnkeep_org()
                  AND c.workspace_id = turnkeep_workspace() AND c.deleted_at IS NULL
                  AND (c.user_id = turnkeep_user() OR turnkeep_is_service() = 1))

-- name: my_messages
-- Their visible messages. Internal rows and those that were removed do not exist here, whatever the role.
SELECT {m.message_columns}
  FROM main.messages m
 WHERE m.org_id = turnkeep_org() AND m.internal = 0 AND m.removed IS NOT '"all"'
   AND EXISTS (SELECT 1 FROM main.conversations c
                WHERE c.id = m.conversation_id AND c.org_id = turnkeep_org()
                  AND c.workspace_id = turnkeep_workspace() AND c.deleted_at IS NULL
                  AND (c.user_id = turnkeep_user() OR turnkeep_is_service() = 1))

-- name: my_files
-- Files of their bags, one's own files that are in no bag yet, and the workspace's Files.
SELECT {f.file_columns}
  FROM main.files f
 WHERE f.org_id = turnkeep_org() AND f.workspace_id = turnkeep_workspace() AND f.deleted_at IS NULL
   AND CASE WHEN f.conversation_id IS NULL
            THEN f.user_id = turnkeep_user() OR turnkeep_is_service() = 1
                 OR (f.saved_at IS NOT NULL AND turnkeep_user() IS NOT NULL)
            ELSE EXISTS (SELECT 1 FROM main.conversations c
                          WHERE c.id = f.conversation_id AND c.org_id = turnkeep_org()
                            AND c.workspace_id = turnkeep_workspace() AND c.deleted_at IS NULL
                            AND (c.user_id = turnkeep_user() OR turnkeep_is_service() = 1)) END

-- name: my_agents
-- Agents of the workspace, for everyone in it.
SELECT {a.agent_columns}
  FROM main.agents a
 WHERE a.org_id = turnkeep_org() AND a.workspace_id = turnkeep_workspace() AND a.deleted_at IS NULL

-- name: my_pages
-- Pages of the workspace, for everyone in it.
SELECT p.id, p.workspace_id, p.title, p.content, p.created_at, p.updated_at
  FROM main.pages p
 WHERE p.org_id = turnkeep_org() AND p.workspace_id = turnkeep_workspace()
   AND (turnkeep_user() IS NOT NULL OR turnkeep_is_service() = 1)

-- name: my_tables
-- Its tables.
SELECT {t.table_columns}, t.serial
  FROM main.tables t
 WHERE t.org_id = turnkeep_org() AND t.workspace_id = turnkeep_workspace() AND t.deleted_at IS NULL
   AND (turnkeep_user() IS NOT NULL OR turnkeep_is_service() = 1)

-- name: my_table_rows
-- Their rows, but for those of an import that has not ended.
SELECT r.n, r.cells, r.created_at, r.updated_at
  FROM main.table_rows r
 WHERE r.org_id = turnkeep_org()
   AND EXISTS (SELECT 1 FROM main.tables t
                WHERE t.serial = r.n >> 32 AND t.org_id = turnkeep_org() AND t.workspace_id = turnkeep_workspace()
                  AND t.deleted_at IS NULL AND (turnkeep_user() IS NOT NULL OR turnkeep_is_service() = 1)
                  AND (t.import_first IS NULL OR (r.n & 4294967295) NOT BETWEEN t.import_first AND t.import_last))
