-- What the verbs of turns share. Every function here runs inside a transaction that holds the conversation's lock.

-- A refusal: ends the transaction, so nothing of it is stored. The codes are those of `errors.py` (see `io/errors.py`).
CREATE FUNCTION turnkeep.refuse(p_code text, p_message text, p_detail text DEFAULT '') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message, DETAIL = p_detail;
END $$;

-- The slot in which this connection counts (`usage_slots`). No two connections that count at the same time share one, but by
-- chance.
CREATE FUNCTION turnkeep.own_slot() RETURNS integer LANGUAGE sql STABLE AS $$ SELECT pg_backend_pid() % 64 $$;

-- What a scope has used in a month, in all slots.
CREATE FUNCTION turnkeep.used_in(p_org text, p_scope text, p_id text, p_month text)
RETURNS TABLE (ui_messages bigint, api_messages bigint, input_tokens bigint, output_tokens bigint, cost double precision)
LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
    RETURN QUERY
    SELECT coalesce(sum(a.ui_messages), 0)::bigint, coalesce(sum(a.api_messages), 0)::bigint,
           coalesce(sum(a.input_tokens), 0)::bigint, coalesce(sum(a.output_tokens), 0)::bigint, coalesce(sum(a.cost), 0)
      FROM (SELECT u.ui_messages, u.api_messages, u.input_tokens, u.output_tokens, u.cost FROM turnkeep.usage u
             WHERE u.org_id = p_org AND u.scope = p_scope AND u.scope_id = p_id AND u.month = p_month
             UNION ALL
            SELECT s.ui_messages, s.api_messages, s.input_tokens, s.output_tokens, s.cost FROM turnkeep.usage_slots s
             WHERE s.org_id = p_org AND s.scope = p_scope AND s.scope_id = p_id AND s.month = p_month) a;
END $$;

-- Make the visible chain end with `p_head` (NULL: empty); return by how much the counters change. Walks up from the head
-- only to the first turn that is visible already, so the cost is that of what changes.
CREATE FUNCTION turnkeep.show_chain(p_conversation text, p_head text, OUT more_turns integer, OUT more_messages integer)
LANGUAGE plpgsql AS $$
DECLARE
    v_turn    text := p_head;
    v_ordinal integer := 0;
    v_shown   text[] := '{}';
    v_place   record;
    v_lost    record;
BEGIN
    WHILE v_turn IS NOT NULL LOOP
        SELECT t.parent_turn_id, t.ordinal, t.active INTO v_place
          FROM turnkeep.turns t WHERE t.id = v_turn AND t.conversation_id = p_conversation;
        EXIT WHEN NOT FOUND;
        IF v_place.active THEN
            v_ordinal := v_place.ordinal;
            EXIT;
        END IF;
        v_shown := v_shown || v_turn;
        v_turn := v_place.parent_turn_id;
    END LOOP;
    WITH hidden AS (
        UPDATE turnkeep.turns t SET active = false
         WHERE t.conversation_id = p_conversation AND t.active AND t.ordinal > v_ordinal
        RETURNING t.id
    )
    SELECT count(*) AS turns, coalesce(sum(turnkeep.visible_rows(h.id)), 0) AS messages INTO v_lost FROM hidden h;
    WITH shown AS (UPDATE turnkeep.turns t SET active = true WHERE t.id = ANY (v_shown) RETURNING t.id)
    SELECT count(*) - v_lost.turns, coalesce(sum(turnkeep.visible_rows(s.id)), 0) - v_lost.messages
      INTO more_turns, more_messages
      FROM shown s;
END $$;

CREATE FUNCTION turnkeep.visible_rows(p_turn text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT count(*) FROM turnkeep.messages m 
             WHERE m.turn_id = p_turn AND NOT m.internal AND m.removed IS DISTINCT FROM '"all"');
END $$;

-- Write these entries (`rules.outbox.NewEntry`) of the turns that have ended; those of other turns are left out.
CREATE FUNCTION turnkeep.write_outbox(p_turns turnkeep.turns[], p_entries json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.outbox
           (id, org_id, workspace_id, user_id, type, conversation_id, subject_id, created_at, not_before)
    SELECT e.id, t.org_id, t.workspace_id, t.user_id, e.type, t.conversation_id, t.id, t.settled_at, t.settled_at
      FROM unnest(p_turns) t JOIN json_to_recordset(p_entries) AS e (id text, type text, turn_id text) ON e.turn_id = t.id;
END $$;

-- End waiting turns: each with this error, this last event and its entry of the outbox, and with its message taken back from
-- those it was counted for. The counters are locked in the order of their keys.
CREATE FUNCTION turnkeep.cancel_turns(p_turns text[], p_now bigint, p_error text, p_event text, p_outbox json)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ended turnkeep.turns[];
BEGIN
    WITH ended AS (
        UPDATE turnkeep.turns t
           SET status = 'cancelled', settled_at = p_now, lease_until = NULL, last_seq = t.last_seq + 1, error = p_error
         WHERE t.id = ANY (p_turns) AND t.status = 'queued'
        RETURNING t.*
    )
    SELECT array_agg(e::turnkeep.turns) INTO v_ended FROM ended e;
    INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
    SELECT e.id, e.last_seq, e.org_id, 'error', p_event FROM unnest(v_ended) e;
    PERFORM turnkeep.write_outbox(v_ended, p_outbox);
    INSERT INTO turnkeep.usage_slots AS u (org_id, scope, scope_id, month, slot, ui_messages, api_messages)
    SELECT e.org_id, s.scope, s.scope_id, e.month, turnkeep.own_slot(), -count(*) FILTER (WHERE e.source = 'ui'),
           -count(*) FILTER (WHERE e.source = 'api')
      FROM unnest(v_ended) e
     CROSS JOIN LATERAL (
        SELECT v.scope, v.scope_id
          FROM (VALUES ('key', e.key_id), ('user', e.user_id), ('workspace', e.workspace_id)) AS v (scope, scope_id)
         UNION ALL
        SELECT 'key', a.id FROM turnkeep.api_keys k, json_array_elements_text(k.ancestors::json) AS a (id)
         WHERE k.id = e.key_id) s
     WHERE s.scope_id IS NOT NULL
     GROUP BY e.org_id, s.scope, s.scope_id, e.month
     ORDER BY e.org_id, s.scope, s.scope_id, e.month
    ON CONFLICT (org_id, scope, scope_id, month, slot) DO UPDATE
       SET ui_messages = u.ui_messages + excluded.ui_messages, api_messages = u.api_messages + excluded.api_messages;
END $$;

-- What decides which turn of a conversation runs next, as one document (`rules.turns.PromotionFacts`). The conversation is
-- locked from here to the commit.
CREATE FUNCTION turnkeep.promotion_facts(p_conversation text) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM turnkeep.conversations c WHERE c.id = p_conversation FOR UPDATE;
    RETURN (
        SELECT json_build_object(
            'is_deleted', c.deleted_at IS NOT NULL,
            'head_turn_id', c.head_turn_id,
            'is_running', EXISTS (SELECT 1 FROM turnkeep.turns r WHERE r.conversation_id = c.id AND r.status = 'running'),
            'waiting', coalesce((
                SELECT json_agg(json_build_object(
                           'id', q.id,
                           'beside', (SELECT json_build_object('parent_turn_id', b.parent_turn_id, 'status', b.status,
                                                               'started_at', b.started_at)
                                        FROM turnkeep.turns b
                                       WHERE b.id = q.beside_turn_id AND b.conversation_id = c.id)) ORDER BY q.ordinal)
                  FROM turnkeep.turns q WHERE q.conversation_id = c.id AND q.status = 'queued'), '[]'))
          FROM turnkeep.conversations c WHERE c.id = p_conversation);
END $$;

-- Let a waiting turn run behind `p_parent`, with a lease that has already ended, so that any worker may adopt it. For a
-- branch the visible chain first gives way. The conversation is locked, and nothing runs in it.
CREATE FUNCTION turnkeep.start_waiting(p_conversation text, p_turn text, p_parent text, p_is_branch boolean, p_now bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_turns    integer := 0;
    v_messages integer := 0;
BEGIN
    IF p_is_branch THEN
        SELECT c.more_turns, c.more_messages INTO v_turns, v_messages FROM turnkeep.show_chain(p_conversation, p_parent) c;
    END IF;
    UPDATE turnkeep.turns t
       SET status = 'running', attempt = 0, lease_until = 0, started_at = p_now, active = true, parent_turn_id = p_parent,
           -- Readers who left while it waited, or were cut off, have their time once more.
           watched_until = CASE WHEN t.watched_until IS NOT NULL
                                THEN greatest(t.watched_until, p_now + t.watched_ms) END
     WHERE t.id = p_turn;
    UPDATE turnkeep.conversations c
       SET turn_count = c.turn_count + 1 + v_turns, message_count = c.message_count + 1 + v_messages, updated_at = p_now
     WHERE c.id = p_conversation;
END $$;
