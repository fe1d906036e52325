-- Claim turns: `claim_facts` loads, `rules.claims` decides, `write_claims` locks, makes sure that the conversations are still
-- as they were, and writes. Each is one statement, for claims of many conversations at once. No lock is held between them,
-- so that a worker which is stopped in the middle of a claim keeps no other worker waiting.

-- What a claim depends on, as one document (`rules.claims.ClaimFacts`, but for the time). `p_asked` is made by `turns.py`.
CREATE FUNCTION turnkeep.claim_facts(p_asked json) RETURNS json LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_org          text;
    v_workspace    text;
    v_owner        text;
    v_ref          text;
    v_user         text;
    v_keys         text[];
    v_turn         text;
    v_idempotency  text;
    v_agent        text;
    v_conversation text;
    v_beside       text;
    v_files        text[];
    v_by_key       json;
    v_by_id        json;
    v_limits       json;
    v_place        json;
    v_replaced     json;
    v_external     text;
    v_of_external  text;
BEGIN
    SELECT a.org, a.workspace, a.owner, a.ref, a."user", a.keys, a.turn, a.idempotency_key, a.agent, a.conversation, a.beside, a.files,
           a.external_id
      INTO v_org, v_workspace, v_owner, v_ref, v_user, v_keys, v_turn, v_idempotency, v_agent, v_conversation, v_beside, v_files,
           v_external
      FROM json_to_record(p_asked) AS a (org text, workspace text, owner text, ref text, "user" text, keys text[],
                                         turn text, idempotency_key text, agent text, conversation text, beside text, files text[],
                                         external_id text);
    IF v_idempotency IS NOT NULL THEN
        SELECT turnkeep.known_turn(t) INTO v_by_key FROM turnkeep.turns t
         WHERE t.org_id = v_org AND t.principal_ref = v_ref AND t.idempotency_key = v_idempotency;
    END IF;
    SELECT turnkeep.known_turn(t) INTO v_by_id FROM turnkeep.turns t WHERE t.id = v_turn;
    v_limits := turnkeep.limits_of(v_org, v_workspace, v_user, v_keys);
    IF v_conversation IS NOT NULL THEN
        SELECT turnkeep.claimed_conversation(c) INTO v_place FROM turnkeep.conversations c
         WHERE c.id = v_conversation AND c.org_id = v_org AND c.workspace_id = v_workspace
           AND (v_owner IS NULL OR c.user_id = v_owner) AND c.deleted_at IS NULL;
    END IF;
    IF v_beside IS NOT NULL THEN
        SELECT json_build_object('parent_turn_id', b.parent_turn_id, 'status', b.status, 'started_at', b.started_at)
          INTO v_replaced
          FROM turnkeep.turns b WHERE b.id = v_beside AND b.conversation_id = v_conversation;
    END IF;
    IF v_external IS NOT NULL THEN
        SELECT x.id INTO v_of_external FROM turnkeep.conversations x
         WHERE x.workspace_id = v_workspace AND x.external_id = v_external
           AND coalesce(x.user_id, '') = coalesce(v_user, '') AND x.deleted_at IS NULL;
    END IF;
    RETURN json_build_object(
        'by_key', v_by_key,
        'by_id', v_by_id,
        'limits', v_limits,
        'has_workspace', EXISTS (SELECT 1 FROM turnkeep.workspaces w WHERE w.id = v_workspace AND w.org_id = v_org),
        'has_user', v_user IS NULL OR turnkeep.has_user(v_org, v_user),
        'has_agent', v_agent IS NULL OR turnkeep.has_agent(v_org, v_workspace, v_agent),
        'conversation', v_place,
        'beside', v_replaced,
        'attachments', CASE WHEN v_files <> '{}' THEN turnkeep.attachable(v_org, v_workspace, v_owner, v_conversation, v_files) END,
        'of_external_id', v_of_external);
END $$;

-- The limits of those scopes that have any (`rules.claims.ScopeLimits`). What they have used is looked up only where tokens or
-- cost have a limit.
CREATE FUNCTION turnkeep.limits_of(p_org text, p_workspace text, p_user text, p_keys text[]) RETURNS json
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT json_agg(json_build_object(
                   'scope', l.scope, 'scope_id', l.id, 'messages', l.messages, 'tokens', l.tokens, 'cost', l.cost,
                   'turns', l.turns,
                   'used_tokens', CASE WHEN l.tokens IS NOT NULL THEN (turnkeep.spent_of(p_org, l.scope, l.id)).tokens END,
                   'used_cost', CASE WHEN l.cost IS NOT NULL THEN (turnkeep.spent_of(p_org, l.scope, l.id)).cost END,
                   'used_messages', CASE WHEN coalesce(l.tokens, l.cost) IS NOT NULL
                                         THEN turnkeep.messages_of(p_org, l.scope, l.id) END))
          FROM (SELECT 'workspace' AS scope, w.id, w.monthly_message_limit AS messages, w.monthly_token_limit AS tokens,
                       w.monthly_cost_limit AS cost, w.parallel_turn_limit AS turns
                  FROM turnkeep.workspaces w WHERE w.id = p_workspace AND w.org_id = p_org
                 UNION ALL
                SELECT 'user', m.id, coalesce(m.monthly_message_limit, w.user_monthly_message_limit),
                       coalesce(m.monthly_token_limit, w.user_monthly_token_limit),
                       coalesce(m.monthly_cost_limit, w.user_monthly_cost_limit),
                       coalesce(m.parallel_turn_limit, w.user_parallel_turn_limit)
                  FROM turnkeep.members m JOIN turnkeep.workspaces w ON w.id = m.workspace_id
                 WHERE m.id = p_user AND m.org_id = p_org
                 UNION ALL
                SELECT 'key', k.id, k.monthly_message_limit, k.monthly_token_limit, k.monthly_cost_limit,
                       k.parallel_turn_limit
                  FROM turnkeep.api_keys k WHERE k.id = ANY (p_keys) AND k.org_id = p_org) l
         WHERE coalesce(l.messages, l.tokens, l.cost, l.turns) IS NOT NULL), '[]');
END $$;

-- What a scope has used in this month. The keys that a key has made count with it.
CREATE FUNCTION turnkeep.spent_of(p_org text, p_scope text, p_id text, OUT tokens bigint, OUT cost double precision)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(sum(u.input_tokens + u.output_tokens), 0), coalesce(sum(u.cost), 0) INTO tokens, cost
      FROM (SELECT p_id AS id UNION ALL SELECT d.id FROM turnkeep.api_keys d
             WHERE p_scope = 'key' AND d.org_id = p_org AND strpos(d.ancestors, p_id) > 0) s,
           turnkeep.used_in(p_org, p_scope, s.id,
                            to_char(to_timestamp(turnkeep.now_ms() / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM')) u;
END $$;

-- The messages that a scope has counted in this month.
CREATE FUNCTION turnkeep.messages_of(p_org text, p_scope text, p_id text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT u.ui_messages + u.api_messages
              FROM turnkeep.used_in(p_org, p_scope, p_id,
                                    to_char(to_timestamp(turnkeep.now_ms() / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM')) u);
END $$;

-- Turns of a scope that run or wait, but for those that are being stopped. The turns of a key are those of the keys that it
-- made, too.
CREATE FUNCTION turnkeep.open_turns_of(p_scope text, p_id text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT count(*)
          FROM (SELECT r.workspace_id, r.user_id, r.key_id FROM turnkeep.turns r
                 WHERE r.status = 'running' AND r.cancel_requested_at IS NULL
                 UNION ALL
                SELECT q.workspace_id, q.user_id, q.key_id FROM turnkeep.turns q WHERE q.status = 'queued') t
         WHERE CASE p_scope
               WHEN 'workspace' THEN t.workspace_id = p_id
               WHEN 'user' THEN t.user_id = p_id
               ELSE t.key_id = p_id OR EXISTS (SELECT 1 FROM turnkeep.api_keys d
                                                WHERE d.id = t.key_id AND strpos(d.ancestors, p_id) > 0) END);
END $$;

-- Whether there is such a user who may do something.
CREATE FUNCTION turnkeep.has_user(p_org text, p_user text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM turnkeep.members m WHERE m.id = p_user AND m.org_id = p_org AND NOT m.is_disabled);
END $$;

-- A turn as `rules.claims.KnownTurn` has it.
CREATE FUNCTION turnkeep.known_turn(p_turn turnkeep.turns) RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN json_build_object(
        'id', p_turn.id, 'conversation_id', p_turn.conversation_id, 'org_id', p_turn.org_id,
        'principal_ref', p_turn.principal_ref, 'request_hash', p_turn.request_hash, 'status', p_turn.status,
        'attempt', p_turn.attempt, 'worker', p_turn.worker,
        'user_message_id',
        (SELECT m.id FROM turnkeep.messages m WHERE m.turn_id = p_turn.id AND m.turn_sequence = 0));
END $$;

-- A conversation as `rules.claims.ClaimedConversation` has it.
CREATE FUNCTION turnkeep.claimed_conversation(p_conversation turnkeep.conversations) RETURNS json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_running json;
    v_waiting json;
BEGIN
    SELECT json_build_object('id', r.id, 'started_at', r.started_at,
                             'waiting_for', {r.waiting_for})
      INTO v_running
      FROM turnkeep.turns r WHERE r.conversation_id = p_conversation.id AND r.status = 'running';
    SELECT json_agg(json_build_object('id', q.id, 'ordinal', q.ordinal, 'steers', q.steers_turn_id) ORDER BY q.ordinal) INTO v_waiting
      FROM turnkeep.turns q WHERE q.conversation_id = p_conversation.id AND q.status = 'queued';
    RETURN json_build_object(
        'head_turn_id', p_conversation.head_turn_id,
        'turn_count', p_conversation.turn_count,
        'settings', json_build_object('kind', p_conversation.kind, 'agent_id', p_conversation.agent_id,
                                      'model', p_conversation.model, 'instructions', p_conversation.instructions,
                                      'temperature', p_conversation.temperature),
        'queue', json_build_object('next_ordinal', p_conversation.next_ordinal, 'running', v_running,
                                   'waiting', coalesce(v_waiting, '[]')));
END $$;

CREATE FUNCTION turnkeep.has_agent(p_org text, p_workspace text, p_agent text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM turnkeep.agents a
                    WHERE a.id = p_agent AND a.org_id = p_org AND a.workspace_id = p_workspace AND a.deleted_at IS NULL);
END $$;

-- The files that a claim may attach, and the names that its conversation has already (`rules.claims.Attachable`).
CREATE FUNCTION turnkeep.attachable(p_org text, p_workspace text, p_owner text, p_conversation text, p_files text[])
RETURNS json LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN json_build_object(
        'files', coalesce((
            SELECT json_agg(json_build_object('id', f.id, 'name', f.name, 'mime_type', f.mime_type, 'size', f.size,
                                              'status', f.status, 'conversation_id', f.conversation_id,
                                              'saved_at', f.saved_at) ORDER BY f.id)
              FROM turnkeep.files f
             WHERE f.id = ANY (p_files) AND f.org_id = p_org AND f.workspace_id = p_workspace AND f.deleted_at IS NULL
               AND (p_owner IS NULL OR f.user_id = p_owner OR f.saved_at IS NOT NULL)), '[]'),
        'taken_names', coalesce((
            SELECT json_agg(f.name_key ORDER BY f.id) FROM turnkeep.files f
             WHERE f.conversation_id = p_conversation AND f.deleted_at IS NULL), '[]'));
END $$;

-- Write claims as they were decided; return the conversations of those that were left out, with nothing written, because
-- their conversation is not as the facts of the claim have it any more (no facts: it was locked and looked at). A turn under
-- the same id or key, and a conversation of the same external id, violates a unique index. Raises TK006, with the counters, if one of them is over its limit, and TK011 if
-- a user who begins a conversation was erased or disabled.
--
-- Each claim has a conversation of its own. Turns, questions and first events come as rows of their tables. `p_counters` has
-- one for everything that a message is counted for; claims of one user or key count together. `p_new` is a list of the
-- conversations that are made, or NULL. The others are locked first, in the order of their ids, and looked at by a later
-- statement: a single one that waits for a lock would still see what was there before it waited. A counter without a limit is
-- only counted, in the slot of this connection. One with a limit is locked, as all claims that it counts must wait for each
-- other. Counters are the last that is locked: first the slots, then the others, each in the order of their keys.
-- The plans are fixed: loops that look up each row by its index.
CREATE FUNCTION turnkeep.write_claims(
    p_jobs turnkeep.claim_job[], p_turns turnkeep.turn_row[], p_messages turnkeep.message_row[],
    p_events turnkeep.event_row[], p_counters turnkeep.message_counter[], p_new json
) RETURNS text[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    v_left     text[] := '{}';
    v_existing text[] := ARRAY(SELECT j.conversation_id FROM unnest(p_jobs) j WHERE NOT j.is_new);
BEGIN
    IF v_existing <> '{}' THEN
        PERFORM 1 FROM turnkeep.conversations c WHERE c.id = ANY (v_existing) ORDER BY c.id FOR UPDATE;
        v_left := ARRAY(
            SELECT j.conversation_id FROM unnest(p_jobs) j
              LEFT JOIN turnkeep.conversations c ON c.id = j.conversation_id AND c.deleted_at IS NULL
             WHERE j.facts IS NOT NULL
               AND turnkeep.claimed_conversation(c)::text IS DISTINCT FROM j.facts::json ->> 'conversation');
        IF v_left <> '{}' THEN
            p_jobs := ARRAY(SELECT j FROM unnest(p_jobs) j WHERE j.conversation_id <> ALL (v_left));
            p_turns := ARRAY(SELECT t FROM unnest(p_turns) t WHERE t.conversation_id <> ALL (v_left));
            p_messages := ARRAY(SELECT m FROM unnest(p_messages) m WHERE m.conversation_id <> ALL (v_left));
            p_events := ARRAY(SELECT e FROM unnest(p_events) e JOIN unnest(p_turns) t ON t.id = e.turn_id);
            p_counters := ARRAY(SELECT n FROM unnest(p_counters) n WHERE n.conversation_id <> ALL (v_left));
        END IF;
        UPDATE turnkeep.conversations c
           SET next_ordinal = c.next_ordinal + 1, updated_at = t.created_at,
               read_at = CASE WHEN t.background THEN t.created_at END,
               title = coalesce(c.title, j.title), preview = coalesce(c.preview, j.preview),
               turn_count = c.turn_count + (t.status = 'running')::integer,
               message_count = c.message_count + (t.status = 'running')::integer
          FROM unnest(p_jobs) j JOIN unnest(p_turns) t ON t.conversation_id = j.conversation_id
         WHERE c.id = j.conversation_id AND NOT j.is_new;
    END IF;
    IF p_new IS NOT NULL THEN
        INSERT INTO turnkeep.conversations ({new_conversation_columns})
        SELECT {c.new_conversation_columns} FROM json_populate_recordset(NULL::turnkeep.conversations, p_new) c;
    END IF;
    -- The turns come before the counters and their rows: their key tells that another claim under the same id was quicker.
    WITH claimed AS (
        INSERT INTO turnkeep.turns ({turn_row_columns}) SELECT t.* FROM unnest(p_turns) t RETURNING 1
    )
    INSERT INTO turnkeep.usage_slots AS u (org_id, scope, scope_id, month, slot, ui_messages, api_messages)
    SELECT n.org_id, n.scope, n.scope_id, n.month, turnkeep.own_slot(), count(*) FILTER (WHERE n.source = 'ui'),
           count(*) FILTER (WHERE n.source = 'api')
      FROM unnest(p_counters) n
     WHERE (SELECT count(*) FROM claimed) > 0 AND n."limit" IS NULL AND n.turns IS NULL
     GROUP BY n.org_id, n.scope, n.scope_id, n.month
     ORDER BY n.org_id, n.scope, n.scope_id, n.month
    ON CONFLICT (org_id, scope, scope_id, month, slot) DO UPDATE
       SET ui_messages = u.ui_messages + excluded.ui_messages, api_messages = u.api_messages + excluded.api_messages;
    INSERT INTO turnkeep.messages ({message_row_columns}) SELECT m.* FROM unnest(p_messages) m;
    INSERT INTO turnkeep.turn_events ({event_row_columns}) SELECT e.* FROM unnest(p_events) e;
    IF EXISTS (SELECT 1 FROM unnest(p_counters) n WHERE n."limit" IS NOT NULL OR n.turns IS NOT NULL) THEN
        INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month, ui_messages, api_messages)
        SELECT n.org_id, n.scope, n.scope_id, n.month, count(*) FILTER (WHERE n.source = 'ui'),
               count(*) FILTER (WHERE n.source = 'api')
          FROM unnest(p_counters) n
         WHERE n."limit" IS NOT NULL OR n.turns IS NOT NULL
         GROUP BY n.org_id, n.scope, n.scope_id, n.month
         ORDER BY n.org_id, n.scope, n.scope_id, n.month
        ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE
           SET ui_messages = u.ui_messages + excluded.ui_messages, api_messages = u.api_messages + excluded.api_messages;
        -- Now they are locked. A statement that begins here sees every claim that was counted before.
        PERFORM turnkeep.check_counters(p_counters);
    END IF;
    -- An erasure disables its user, and then waits for the transactions that hold these locks. So it sees this claim, or this
    -- claim sees that.
    IF p_new IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(u.user_id, 1))
           FROM (SELECT DISTINCT t.user_id FROM unnest(p_turns) t WHERE t.user_id IS NOT NULL AND t.ordinal = 1) u;
        IF EXISTS (
            SELECT 1 FROM unnest(p_turns) t WHERE t.user_id IS NOT NULL AND NOT turnkeep.has_user(t.org_id, t.user_id)
               AND t.ordinal = 1) THEN
            PERFORM turnkeep.refuse('TK011', 'a user is gone');
        END IF;
    END IF;
    RETURN v_left;
END $$;

-- Raise TK006, with what was counted (`rules.claims.Counted`), if a counter is over its limit of messages or of parallel turns.
CREATE FUNCTION turnkeep.check_counters(p_counters turnkeep.message_counter[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_messages json := (SELECT json_object_agg(n.scope_id, u.ui_messages + u.api_messages)
                          FROM (SELECT DISTINCT c.org_id, c.scope, c.scope_id, c.month FROM unnest(p_counters) c) n,
                               turnkeep.used_in(n.org_id, n.scope, n.scope_id, n.month) u);
    v_turns    json := (SELECT json_object_agg(n.scope_id, turnkeep.open_turns_of(n.scope, n.scope_id))
                          FROM (SELECT DISTINCT c.scope, c.scope_id FROM unnest(p_counters) c WHERE c.turns IS NOT NULL) n);
BEGIN
    PERFORM turnkeep.refuse('TK006', 'over a limit', json_strip_nulls(json_build_object(
                   'messages', v_messages, 'turns', v_turns))::text)
       FROM unnest(p_counters) n
      WHERE (v_messages ->> n.scope_id)::bigint > n."limit" OR (v_turns ->> n.scope_id)::bigint > n.turns;
END $$;

-- Write one claim that changes more than it adds: it attaches files, starts beside another turn, or interrupts. False, with
-- nothing written, if the conversation or the files are not as `p_facts` has them any more. `p_more` says what else is
-- written (see `turns.py`).
CREATE FUNCTION turnkeep.write_claim(
    p_job turnkeep.claim_job, p_turn turnkeep.turn_row, p_message turnkeep.message_row, p_event turnkeep.event_row,
    p_counters turnkeep.message_counter[], p_new json, p_facts json, p_more json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_more         record;
    v_conversation turnkeep.conversations;
    v_shown        record;
BEGIN
    SELECT * INTO v_more FROM json_to_record(p_more) AS m (
        attachments json, owner text, cancels text[], cancel_error text, cancel_event text, cancel_outbox json, stops text,
        moves json, is_branch boolean, steers text);
    IF p_new IS NULL THEN
        SELECT * INTO v_conversation FROM turnkeep.conversations c WHERE c.id = p_turn.conversation_id FOR UPDATE;
        IF v_conversation.deleted_at IS NOT NULL
           OR turnkeep.claimed_conversation(v_conversation)::text IS DISTINCT FROM p_facts ->> 'conversation' THEN
            RETURN false;
        END IF;
    END IF;
    IF v_more.cancels IS NOT NULL THEN
        PERFORM turnkeep.cancel_turns(v_more.cancels, p_turn.created_at, v_more.cancel_error, v_more.cancel_event,
                                      v_more.cancel_outbox);
    END IF;
    IF v_more.stops IS NOT NULL THEN
        UPDATE turnkeep.turns t SET cancel_requested_at = p_turn.created_at
         WHERE t.id = v_more.stops AND t.cancel_requested_at IS NULL;
    END IF;
    IF v_more.steers IS NOT NULL THEN
        UPDATE turnkeep.turns t SET steers = t.steers + 1 WHERE t.id = v_more.steers;
    END IF;
    IF v_more.moves IS NOT NULL THEN
        UPDATE turnkeep.turns t SET ordinal = m.ordinal
          FROM json_to_recordset(v_more.moves) AS m (id text, ordinal integer)
         WHERE t.id = m.id;
    END IF;
    IF p_turn.status = 'running' AND v_more.is_branch THEN
        SELECT * INTO v_shown FROM turnkeep.show_chain(p_turn.conversation_id, p_turn.parent_turn_id);
        UPDATE turnkeep.conversations c
           SET turn_count = c.turn_count + v_shown.more_turns, message_count = c.message_count + v_shown.more_messages
         WHERE c.id = p_turn.conversation_id;
    END IF;
    p_job.facts := NULL;  -- they were looked at, and are others now
    PERFORM turnkeep.write_claims(ARRAY[p_job], ARRAY[p_turn], ARRAY[p_message], ARRAY[p_event], p_counters, p_new);
    IF v_more.attachments IS NOT NULL
       AND NOT turnkeep.attach(p_turn, p_message.id, v_more.owner, v_more.attachments, p_facts ->> 'attachments') THEN
        PERFORM turnkeep.refuse('40001', 'the files have changed');  -- which takes everything back
    END IF;
    RETURN true;
END $$;

-- Put these files into the turn's conversation, under their new names; false if they, or the names, are not as `p_facts` has
-- them any more.
CREATE FUNCTION turnkeep.attach(p_turn turnkeep.turn_row, p_message text, p_owner text, p_attachments json, p_facts text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_files text[] := ARRAY(SELECT a.id FROM json_to_recordset(p_attachments) AS a (id text) ORDER BY a.id);
BEGIN
    PERFORM 1 FROM turnkeep.files f WHERE f.id = ANY (v_files) ORDER BY f.id FOR UPDATE;
    IF turnkeep.attachable(p_turn.org_id, p_turn.workspace_id, p_owner, p_turn.conversation_id, v_files)::text
       IS DISTINCT FROM p_facts THEN
        RETURN false;
    END IF;
    UPDATE turnkeep.files f
       SET conversation_id = p_turn.conversation_id, message_id = coalesce(f.message_id, p_message),
           name = a.name, name_key = a.name_key
      FROM json_to_recordset(p_attachments) AS a (id text, name text, name_key text)
     WHERE f.id = a.id;
    RETURN true;
END $$;
