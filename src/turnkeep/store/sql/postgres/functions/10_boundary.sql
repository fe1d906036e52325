-- Who may see what, as the database itself enforces it. Servers of two releases share it, so it changes by additions only.
--
-- Row-level security is forced on every table of the schema, so that a table which was added and forgotten is closed
-- to the client role instead of open. `turnkeep_engine` works with all rows. `turnkeep_client` may read (it has
-- no other right) and gets only rows of the identity that its transaction has set: turnkeep.org,
-- turnkeep.workspace and turnkeep.user, where the user '*' means every user of the workspace. A setting that was
-- never made is NULL and one that has ended is '': neither equals an id, so no identity sees nothing. A setting is read
-- in a subquery, so that it is looked up once for a query and not for every row.

DO $$
DECLARE
    v_table record;
BEGIN
    FOR v_table IN
        SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity,
               EXISTS (SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'engine') AS has_engine
          FROM pg_class c
         WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relkind IN ('r', 'p')
         ORDER BY c.relname
    LOOP
        IF NOT v_table.relrowsecurity THEN
            EXECUTE format('ALTER TABLE turnkeep.%I ENABLE ROW LEVEL SECURITY', v_table.relname);
        END IF;
        IF NOT v_table.relforcerowsecurity THEN
            EXECUTE format('ALTER TABLE turnkeep.%I FORCE ROW LEVEL SECURITY', v_table.relname);
        END IF;
        IF NOT v_table.has_engine THEN
            EXECUTE format('CREATE POLICY engine ON turnkeep.%I TO turnkeep_engine USING (true) WITH CHECK (true)',
                           v_table.relname);
        END IF;
    END LOOP;
END $$;

DROP POLICY IF EXISTS client ON turnkeep.conversations;
CREATE POLICY client ON turnkeep.conversations FOR SELECT TO turnkeep_client USING (
    org_id = (SELECT current_setting('turnkeep.org', true))
    AND workspace_id = (SELECT current_setting('turnkeep.workspace', true))
    AND (user_id = (SELECT current_setting('turnkeep.user', true))
         OR (SELECT current_setting('turnkeep.user', true)) = '*')
    AND deleted_at IS NULL
);

-- Children belong to whom their conversation belongs; its own policy holds inside the EXISTS. A foreign id is
-- found out by one lookup, so the time of the answer tells nothing. OFFSET 0 forbids the planner to read all
-- conversations into a hash table instead, which it likes to do for a long conversation.
DROP POLICY IF EXISTS client ON turnkeep.turns;
CREATE POLICY client ON turnkeep.turns FOR SELECT TO turnkeep_client USING (
    EXISTS (SELECT 1 FROM turnkeep.conversations c WHERE c.id = turns.conversation_id OFFSET 0)
);

DROP POLICY IF EXISTS client ON turnkeep.messages;
CREATE POLICY client ON turnkeep.messages FOR SELECT TO turnkeep_client USING (
    NOT internal AND removed IS DISTINCT FROM '"all"'
    AND EXISTS (SELECT 1 FROM turnkeep.conversations c WHERE c.id = messages.conversation_id OFFSET 0)
);

DROP POLICY IF EXISTS client ON turnkeep.turn_reports;
CREATE POLICY client ON turnkeep.turn_reports FOR SELECT TO turnkeep_client USING (
    EXISTS (SELECT 1 FROM turnkeep.conversations c WHERE c.id = turn_reports.conversation_id OFFSET 0)
);

-- A file without a conversation belongs to the user who brought it, or was saved for all users of the workspace.
DROP POLICY IF EXISTS client ON turnkeep.files;
CREATE POLICY client ON turnkeep.files FOR SELECT TO turnkeep_client USING (
    org_id = (SELECT current_setting('turnkeep.org', true))
    AND workspace_id = (SELECT current_setting('turnkeep.workspace', true))
    AND deleted_at IS NULL
    AND CASE WHEN conversation_id IS NULL
             THEN user_id = (SELECT current_setting('turnkeep.user', true))
                  OR (SELECT current_setting('turnkeep.user', true)) = '*'
                  OR (saved_at IS NOT NULL AND (SELECT current_setting('turnkeep.user', true)) <> '')
             ELSE EXISTS (SELECT 1 FROM turnkeep.conversations c WHERE c.id = files.conversation_id OFFSET 0)
        END
);

-- Agents are shared by the users of a workspace; an identity without a user has none.
DROP POLICY IF EXISTS client ON turnkeep.agents;
CREATE POLICY client ON turnkeep.agents FOR SELECT TO turnkeep_client USING (
    org_id = (SELECT current_setting('turnkeep.org', true))
    AND workspace_id = (SELECT current_setting('turnkeep.workspace', true))
    AND (SELECT current_setting('turnkeep.user', true)) <> ''
    AND deleted_at IS NULL
);

-- Pages and tables are shared by the users of a workspace, as agents are.
DROP POLICY IF EXISTS client ON turnkeep.pages;
CREATE POLICY client ON turnkeep.pages FOR SELECT TO turnkeep_client USING (
    org_id = (SELECT current_setting('turnkeep.org', true))
    AND workspace_id = (SELECT current_setting('turnkeep.workspace', true))
    AND (SELECT current_setting('turnkeep.user', true)) <> ''
);

DROP POLICY IF EXISTS client ON turnkeep.tables;
CREATE POLICY client ON turnkeep.tables FOR SELECT TO turnkeep_client USING (
    org_id = (SELECT current_setting('turnkeep.org', true))
    AND workspace_id = (SELECT current_setting('turnkeep.workspace', true))
    AND (SELECT current_setting('turnkeep.user', true)) <> ''
    AND deleted_at IS NULL
);

-- Rows belong to their table; rows of an import that has not ended are hidden.
DROP POLICY IF EXISTS client ON turnkeep.table_rows;
CREATE POLICY client ON turnkeep.table_rows FOR SELECT TO turnkeep_client USING (
    EXISTS (SELECT 1 FROM turnkeep.tables t
             WHERE t.id = table_rows.table_id
               AND (t.import_first IS NULL OR table_rows.number NOT BETWEEN t.import_first AND t.import_last) OFFSET 0)
);

-- Rights: the engine works with every table; the client reads nine of them and can do nothing else. PUBLIC has no right.
REVOKE ALL ON SCHEMA turnkeep FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA turnkeep FROM PUBLIC, turnkeep_client;
REVOKE ALL ON FUNCTION turnkeep.now_ms FROM PUBLIC, turnkeep_client;
GRANT USAGE ON SCHEMA turnkeep TO turnkeep_engine, turnkeep_client;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA turnkeep TO turnkeep_engine;
GRANT EXECUTE ON FUNCTION turnkeep.now_ms TO turnkeep_engine;
GRANT SELECT ON turnkeep.conversations, turnkeep.messages, turnkeep.turn_reports, turnkeep.files, turnkeep.agents,
      turnkeep.pages, turnkeep.tables TO turnkeep_client;
GRANT SELECT (table_id, number, org_id, cells, created_at, updated_at) ON turnkeep.table_rows TO turnkeep_client;
-- Not the idempotency keys, nor who holds the lease: only what a turn shows.
GRANT SELECT (id, org_id, workspace_id, conversation_id, user_id, parent_turn_id, ordinal, active, status, attempt,
              failures, last_seq, cancel_requested_at, background, source, model, snapshot, input_tokens, output_tokens,
              cache_read_tokens, cache_write_tokens, month, error, metadata, created_at, started_at, settled_at,
              waiting, waiting_until)
      ON turnkeep.turns TO turnkeep_client;
