-- The client path: one function per query, which takes an identity, reads as the role that called it, and drops the
-- identity again. So an identity lives inside one call: not in the session, and not even in a transaction around it
-- (after an error the transaction is over, and what was set in it with it). The functions run with the rights of the
-- caller: what they can see is decided by the policies alone, whatever stands in the query.

-- It answers something only because an assignment costs a third of a PERFORM.
CREATE FUNCTION turnkeep.become(p_org text, p_workspace text, p_user text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_set text;
BEGIN
    v_set := set_config('turnkeep.org', p_org, true);
    v_set := set_config('turnkeep.workspace', p_workspace, true);
    v_set := set_config('turnkeep.user', p_user, true);
    RETURN v_set;
END $$;

CREATE FUNCTION turnkeep.my_conversation(p_org text, p_workspace text, p_user text, p_conversation text)
RETURNS TABLE (conversation turnkeep.conversations, running_turn_id text) LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT c, (SELECT t.id || coalesce(' ' || {t.waiting_for}, '')
                 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running')
      FROM turnkeep.conversations c WHERE c.id = p_conversation;
    v_user := turnkeep.become('', '', '');
END $$;

-- The same with the messages of the turns that wait, in the order in which they will run: a row for each, or one without
-- a message. One statement, so that all of it is of one moment.
CREATE FUNCTION turnkeep.my_conversation_with_queue(p_org text, p_workspace text, p_user text, p_conversation text)
RETURNS TABLE (conversation turnkeep.conversations, running_turn_id text, id text, turn_id text, role text, blocks text,
               display text, attachments text, sources text, usage text, status text, created_at bigint, model text,
               facts text)
LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT c, (SELECT t.id || coalesce(' ' || {t.waiting_for}, '')
                 FROM turnkeep.turns t WHERE t.conversation_id = c.id AND t.status = 'running'),
           q.id, q.turn_id, q.role, q.blocks, q.display, q.attachments, q.sources, q.usage, q.status, q.created_at,
           q.model, q.facts
      FROM turnkeep.conversations c
      LEFT JOIN LATERAL (SELECT m.id, m.turn_id, m.role, m.blocks, m.display, m.attachments, m.sources, m.usage,
                                t.status, m.created_at, t.ordinal, t.model,
                                CASE WHEN m.metadata IS NOT NULL THEN concat('[null,', m.metadata, ',null]') END AS facts
                           FROM turnkeep.turns t JOIN turnkeep.messages m ON m.turn_id = t.id
                          WHERE t.conversation_id = c.id AND t.status = 'queued' AND NOT m.internal) q ON true
     WHERE c.id = p_conversation
     ORDER BY q.ordinal;
    v_user := turnkeep.become('', '', '');
END $$;

-- A page of the list, newest change first, behind (p_updated_at, p_id). The index has the five minutes of the last change,
-- and conversations of the same five minutes are sorted. Without these settings the planner, which does not know the limit,
-- may sort all conversations.
CREATE FUNCTION turnkeep.my_conversations(p_org text, p_workspace text, p_user text,
                                          p_updated_at bigint, p_id text, p_limit integer)
RETURNS TABLE (conversation turnkeep.conversations, running_turn_id text) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    IF p_user = '*' THEN
        RETURN QUERY
        SELECT l.c, (SELECT t.id || coalesce(' ' || {t.waiting_for}, '')
                 FROM turnkeep.turns t WHERE t.conversation_id = (l.c).id AND t.status = 'running')
          FROM (SELECT x.c, row_number() OVER () AS n, sum(x.size) OVER (ROWS UNBOUNDED PRECEDING) - x.size AS before
                  FROM (SELECT c, octet_length(concat(c.title, c.preview)) + coalesce(octet_length(c.metadata), 0) AS size
                          FROM turnkeep.conversations c
                         WHERE c.workspace_id = p_workspace AND c.deleted_at IS NULL AND c.kind <> 'run' AND c.is_listed
                           AND c.updated_period <= p_updated_at / 300000
                           AND (c.updated_at, c.id) < (p_updated_at, p_id COLLATE "C")
                         ORDER BY c.updated_period DESC, c.updated_at DESC, c.id DESC LIMIT p_limit) x) l
         WHERE l.n <= 2 OR l.before <= 4194304;
    ELSE
        RETURN QUERY
        SELECT l.c, (SELECT t.id || coalesce(' ' || {t.waiting_for}, '')
                 FROM turnkeep.turns t WHERE t.conversation_id = (l.c).id AND t.status = 'running')
          FROM (SELECT x.c, row_number() OVER () AS n, sum(x.size) OVER (ROWS UNBOUNDED PRECEDING) - x.size AS before
                  FROM (SELECT c, octet_length(concat(c.title, c.preview)) + coalesce(octet_length(c.metadata), 0) AS size
                          FROM turnkeep.conversations c
                         WHERE c.workspace_id = p_workspace AND c.user_id = p_user AND c.deleted_at IS NULL AND c.kind <> 'run' AND c.is_listed
                           AND c.updated_period <= p_updated_at / 300000
                           AND (c.updated_at, c.id) < (p_updated_at, p_id COLLATE "C")
                         ORDER BY c.updated_period DESC, c.updated_at DESC, c.id DESC LIMIT p_limit) x) l
         WHERE l.n <= 2 OR l.before <= 4194304;
    END IF;
    v_user := turnkeep.become('', '', '');
END $$;

-- What a search has found, as far as its reader may see it.
CREATE FUNCTION turnkeep.my_found(p_org text, p_workspace text, p_user text, p_conversations text[])
RETURNS TABLE (conversation turnkeep.conversations, running_turn_id text) LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT l.c, (SELECT t.id || coalesce(' ' || {t.waiting_for}, '')
                 FROM turnkeep.turns t WHERE t.conversation_id = (l.c).id AND t.status = 'running')
      FROM (SELECT x.c, row_number() OVER () AS n, sum(x.size) OVER (ROWS UNBOUNDED PRECEDING) - x.size AS before
              FROM (SELECT c, octet_length(concat(c.title, c.preview)) + coalesce(octet_length(c.metadata), 0) AS size
                      FROM turnkeep.conversations c WHERE c.id = ANY (p_conversations)
                     ORDER BY c.updated_at DESC, c.id DESC) x) l
     WHERE l.n <= 2 OR l.before <= 4194304;
    v_user := turnkeep.become('', '', '');
END $$;

-- The folders of a reader, with the number of conversations in each.
CREATE FUNCTION turnkeep.my_folders(p_org text, p_workspace text, p_user text, p_limit integer)
RETURNS TABLE (name text, conversations bigint) LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT c.folder, count(*) FROM turnkeep.conversations c
     WHERE c.workspace_id = p_workspace AND (p_user = '*' OR c.user_id = p_user) AND c.folder IS NOT NULL
       AND c.deleted_at IS NULL AND c.kind <> 'run' AND c.is_listed
     GROUP BY c.folder ORDER BY c.folder LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_messages(p_org text, p_workspace text, p_user text, p_turns text[], p_sequences integer[])
RETURNS TABLE (conversation_id text, blocks text, display text) LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT m.conversation_id, m.blocks, m.display
      FROM unnest(p_turns, p_sequences) AS wanted (turn_id, turn_sequence)
      JOIN turnkeep.messages m ON m.turn_id = wanted.turn_id AND m.turn_sequence = wanted.turn_sequence
     WHERE NOT m.internal AND m.removed IS DISTINCT FROM '"all"';
    v_user := turnkeep.become('', '', '');
END $$;

-- A page of visible rows along the visible chain, behind (p_ordinal, p_sequence) in that order. The rows of a turn come in
-- any order, and those of the turn at the limit come all, so that nothing is sorted or copied here. A reader's row
-- needs its display or else its blocks, never both. Turns beside one of the chain are inactive, so `siblings` looks only
-- among those, and only where there are any. The conversation is looked at first: a foreign one must cost nothing more.
-- Nested loops keep the order of the index, so that a page costs what it shows.
CREATE FUNCTION turnkeep.my_transcript(p_org text, p_workspace text, p_user text, p_conversation text,
                                       p_is_ascending boolean, p_ordinal integer, p_sequence integer, p_limit integer)
RETURNS TABLE (id text, turn_id text, turn_sequence integer, ordinal integer, role text, blocks text, display text,
               attachments text, sources text, usage text, status text, created_at bigint, model text, facts text,
               siblings text[])
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_user     text;
    v_branched boolean;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    SELECT EXISTS (SELECT 1 FROM turnkeep.turns s
                    WHERE s.conversation_id = c.id AND NOT s.active AND s.started_at IS NOT NULL)
      INTO v_branched
      FROM turnkeep.conversations c WHERE c.id = p_conversation;
    IF NOT FOUND THEN
        v_user := turnkeep.become('', '', '');
        RETURN;
    END IF;
    IF p_is_ascending THEN
        RETURN QUERY
        SELECT m.id, m.turn_id, m.turn_sequence, t.ordinal, m.role, CASE WHEN m.display IS NULL THEN m.blocks END,
               m.display, m.attachments, m.sources, m.usage,
               CASE WHEN {t.waiting_for} IS NULL THEN t.status ELSE 'waiting' END, m.created_at, coalesce(m.provider, t.model),
               CASE WHEN num_nonnulls(t.error, m.metadata, t.metadata, r.report) > 0 THEN
                   concat('[', coalesce(t.error, 'null'), ',', coalesce(m.metadata, t.metadata, 'null'), ',',
                          coalesce(r.report, 'null'), ']') END,
               CASE WHEN v_branched THEN turnkeep.siblings(p_conversation, t.id, t.parent_turn_id, t.ordinal) END
          FROM turnkeep.turns t JOIN turnkeep.messages m ON m.turn_id = t.id
          LEFT JOIN turnkeep.turn_reports r ON r.turn_id = t.id
         WHERE t.conversation_id = p_conversation AND t.active AND NOT m.internal AND m.removed IS DISTINCT FROM '"all"'
           AND t.ordinal >= p_ordinal AND (t.ordinal > p_ordinal OR m.turn_sequence > p_sequence)
         ORDER BY t.ordinal FETCH FIRST (p_limit) ROWS WITH TIES;
    ELSE
        RETURN QUERY
        SELECT m.id, m.turn_id, m.turn_sequence, t.ordinal, m.role, CASE WHEN m.display IS NULL THEN m.blocks END,
               m.display, m.attachments, m.sources, m.usage,
               CASE WHEN {t.waiting_for} IS NULL THEN t.status ELSE 'waiting' END, m.created_at, coalesce(m.provider, t.model),
               CASE WHEN num_nonnulls(t.error, m.metadata, t.metadata, r.report) > 0 THEN
                   concat('[', coalesce(t.error, 'null'), ',', coalesce(m.metadata, t.metadata, 'null'), ',',
                          coalesce(r.report, 'null'), ']') END,
               CASE WHEN v_branched THEN turnkeep.siblings(p_conversation, t.id, t.parent_turn_id, t.ordinal) END
          FROM turnkeep.turns t JOIN turnkeep.messages m ON m.turn_id = t.id
          LEFT JOIN turnkeep.turn_reports r ON r.turn_id = t.id
         WHERE t.conversation_id = p_conversation AND t.active AND NOT m.internal AND m.removed IS DISTINCT FROM '"all"'
           AND t.ordinal <= p_ordinal AND (t.ordinal < p_ordinal OR m.turn_sequence < p_sequence)
         ORDER BY t.ordinal DESC FETCH FIRST (p_limit) ROWS WITH TIES;
    END IF;
    v_user := turnkeep.become('', '', '');
END $$;

-- The questions of these turns, to compare them.
CREATE FUNCTION turnkeep.my_questions(p_org text, p_workspace text, p_user text, p_turns text[])
RETURNS TABLE (turn_id text, question text) LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT DISTINCT ON (m.turn_id) m.turn_id, md5(concat(m.blocks, m.attachments))
      FROM turnkeep.messages m
     WHERE m.turn_id = ANY (p_turns) AND m.role = 'user' AND NOT m.internal
     ORDER BY m.turn_id, m.turn_sequence;
    v_user := turnkeep.become('', '', '');
END $$;

-- The turns that start where this one of the visible chain starts, itself among them, if there are others.
CREATE FUNCTION turnkeep.siblings(p_conversation text, p_turn text, p_parent text, p_ordinal integer) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT array_agg(s.id ORDER BY s.ordinal)
              FROM (SELECT t.id, t.ordinal FROM turnkeep.turns t
                     WHERE t.conversation_id = p_conversation AND NOT t.active AND t.started_at IS NOT NULL
                       AND t.parent_turn_id IS NOT DISTINCT FROM p_parent
                     UNION ALL SELECT p_turn, p_ordinal) s
            HAVING count(*) > 1);
END $$;

-- The visible messages of these turns, which are turns of one branch, in order.
CREATE FUNCTION turnkeep.my_rows_of_turns(p_org text, p_workspace text, p_user text, p_turns text[])
RETURNS TABLE (id text, turn_id text, role text, blocks text, display text, attachments text, sources text, usage text,
               status text, created_at bigint, model text, facts text)
LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT m.id, m.turn_id, m.role, CASE WHEN m.display IS NULL THEN m.blocks END, m.display, m.attachments, m.sources,
           m.usage, t.status, m.created_at, coalesce(m.provider, t.model),
           CASE WHEN num_nonnulls(t.error, m.metadata, t.metadata, r.report) > 0 THEN
               concat('[', coalesce(t.error, 'null'), ',', coalesce(m.metadata, t.metadata, 'null'), ',',
                      coalesce(r.report, 'null'), ']') END
      FROM turnkeep.turns t JOIN turnkeep.messages m ON m.turn_id = t.id
      LEFT JOIN turnkeep.turn_reports r ON r.turn_id = t.id
     WHERE t.id = ANY (p_turns) AND m.turn_id = ANY (p_turns) AND NOT m.internal
     ORDER BY t.ordinal, m.turn_sequence;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_turn(p_org text, p_workspace text, p_user text, p_turn text)
RETURNS TABLE (id text, conversation_id text, workspace_id text, user_id text, parent_turn_id text, ordinal integer,
               active boolean, status text, attempt integer, failures integer, last_seq integer,
               cancel_requested_at bigint, background boolean, source text, model text, snapshot text,
               input_tokens bigint, output_tokens bigint, cache_read_tokens bigint, cache_write_tokens bigint,
               month text, error text, metadata text, created_at bigint, started_at bigint, settled_at bigint,
               report text, waiting text, waiting_until bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT {t.turn_columns} FROM turnkeep.turns t WHERE t.id = p_turn;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_file(p_org text, p_workspace text, p_user text, p_file text)
RETURNS SETOF turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY SELECT * FROM turnkeep.files f WHERE f.id = p_file;
    v_user := turnkeep.become('', '', '');
END $$;

-- The conversation is looked at first: a foreign one must cost nothing more.
CREATE FUNCTION turnkeep.my_files(p_org text, p_workspace text, p_user text, p_conversation text)
RETURNS SETOF turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    PERFORM 1 FROM turnkeep.conversations c WHERE c.id = p_conversation;
    IF NOT FOUND THEN
        v_user := turnkeep.become('', '', '');
        RETURN;
    END IF;
    RETURN QUERY
    SELECT * FROM turnkeep.files f
     WHERE f.conversation_id = p_conversation AND f.status = 'ready' ORDER BY f.created_at, f.id;
    v_user := turnkeep.become('', '', '');
END $$;

-- A page of the workspace's Files, newest first, before p_before.
CREATE FUNCTION turnkeep.my_saved_files(p_org text, p_workspace text, p_user text, p_before text, p_limit integer)
RETURNS SETOF turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT * FROM turnkeep.files f
     WHERE f.workspace_id = p_workspace AND f.saved_at IS NOT NULL AND f.id < p_before COLLATE "C"
     ORDER BY f.id DESC LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_loose_files(p_org text, p_workspace text, p_user text, p_before text, p_limit integer)
RETURNS SETOF turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT * FROM turnkeep.files f
     WHERE f.workspace_id = p_workspace AND f.conversation_id IS NULL AND f.saved_at IS NULL AND f.status = 'ready'
       AND f.deleted_at IS NULL AND f.id < p_before COLLATE "C"
     ORDER BY f.id DESC LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_agent(p_org text, p_workspace text, p_user text, p_agent text)
RETURNS SETOF turnkeep.agents LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY SELECT * FROM turnkeep.agents a WHERE a.id = p_agent;
    v_user := turnkeep.become('', '', '');
END $$;

-- A page of agents, newest first, before p_before.
CREATE FUNCTION turnkeep.my_agents(p_org text, p_workspace text, p_user text, p_before text, p_limit integer)
RETURNS SETOF turnkeep.agents LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT * FROM turnkeep.agents a
     WHERE a.workspace_id = p_workspace AND a.deleted_at IS NULL AND a.id < p_before COLLATE "C"
     ORDER BY a.id DESC LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

-- The same of these agents alone: those of a caller's scopes.
CREATE FUNCTION turnkeep.my_reached_agents(
    p_org text, p_workspace text, p_user text, p_before text, p_limit integer, p_reached text[]
) RETURNS SETOF turnkeep.agents LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT * FROM turnkeep.agents a
     WHERE a.workspace_id = p_workspace AND a.deleted_at IS NULL AND a.id = ANY (p_reached)
       AND a.id < p_before COLLATE "C"
     ORDER BY a.id DESC LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_page(p_org text, p_workspace text, p_user text, p_page text)
RETURNS SETOF turnkeep.pages LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY SELECT * FROM turnkeep.pages p WHERE p.id = p_page;
    v_user := turnkeep.become('', '', '');
END $$;

-- A page of pages, newest first, before p_before; without their content.
CREATE FUNCTION turnkeep.my_pages(p_org text, p_workspace text, p_user text, p_before text, p_limit integer)
RETURNS TABLE (id text, workspace_id text, title text, size integer, created_at bigint, updated_at bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT p.id, p.workspace_id, p.title, length(p.content), p.created_at, p.updated_at FROM turnkeep.pages p
     WHERE p.workspace_id = p_workspace AND p.id < p_before COLLATE "C"
     ORDER BY p.id DESC LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_page_texts(p_org text, p_workspace text, p_user text, p_pages text[])
RETURNS TABLE (id text, title text, content text) LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY SELECT p.id, p.title, p.content FROM turnkeep.pages p WHERE p.id = ANY (p_pages);
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_table(p_org text, p_workspace text, p_user text, p_table text)
RETURNS SETOF turnkeep.tables LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY SELECT * FROM turnkeep.tables t WHERE t.id = p_table;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_tables(p_org text, p_workspace text, p_user text, p_before text, p_limit integer)
RETURNS SETOF turnkeep.tables LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT * FROM turnkeep.tables t
     WHERE t.workspace_id = p_workspace AND t.deleted_at IS NULL AND t.id < p_before COLLATE "C"
     ORDER BY t.id DESC LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

-- Rows of one table behind p_after. The table is looked at first: a foreign one must cost nothing more.
CREATE FUNCTION turnkeep.my_table_rows(p_org text, p_workspace text, p_user text, p_table text, p_after integer,
                                       p_limit integer)
RETURNS TABLE (number integer, cells json, created_at bigint, updated_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    PERFORM 1 FROM turnkeep.tables t WHERE t.id = p_table;
    IF NOT FOUND THEN
        v_user := turnkeep.become('', '', '');
        RETURN;
    END IF;
    RETURN QUERY
    SELECT r.number, r.cells, r.created_at, r.updated_at FROM turnkeep.table_rows r
     WHERE r.table_id = p_table AND r.number > p_after ORDER BY r.number LIMIT p_limit;
    v_user := turnkeep.become('', '', '');
END $$;

CREATE FUNCTION turnkeep.my_found_rows(p_org text, p_workspace text, p_user text, p_tables text[], p_numbers integer[])
RETURNS TABLE (table_id text, number integer, cells json, created_at bigint, updated_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_user text;
BEGIN
    v_user := turnkeep.become(p_org, p_workspace, p_user);
    RETURN QUERY
    SELECT r.table_id, r.number, r.cells, r.created_at, r.updated_at
      FROM unnest(p_tables, p_numbers) AS wanted (table_id, number)
      JOIN turnkeep.table_rows r ON r.table_id = wanted.table_id AND r.number = wanted.number;
    v_user := turnkeep.become('', '', '');
END $$;
