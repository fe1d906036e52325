-- What the verbs of turns share. Every function here runs inside a transaction that holds the conversation's lock.

-- A refusal: ends the transaction, so nothing of it is stored. The codes are those of `errors.py` (see pools.py).
CREATE FUNCTION turnkeep.refuse(p_code text, p_message text, p_detail text DEFAULT '') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message, DETAIL = p_detail;
END $$;

-- The JSON of the three events that the database itself writes, byte for byte as msgspec would. Ids need no escaping.
CREATE FUNCTION turnkeep.began_json(p_turn text, p_conversation text, p_message text, p_status text, p_attempt integer)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN '{"type":"turn","turn_id":"' || p_turn || '","conversation_id":"' || p_conversation
        || '","user_message_id":"' || p_message || '","status":"' || p_status || '","attempt":' || p_attempt || '}';
END $$;

CREATE FUNCTION turnkeep.reset_json(p_attempt integer, p_reason text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN '{"type":"reset","attempt":' || p_attempt || ',"reason":"' || p_reason || '"}';
END $$;

CREATE FUNCTION turnkeep.stopped_json() RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT '{"type":"error","code":"cancelled","message":"Stopped before it began."}' $$;

CREATE FUNCTION turnkeep.month_of(p_at bigint) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN to_char(to_timestamp(p_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM');
END $$;

-- The month's rows of one turn's scopes, in the order in which every transaction locks them.
CREATE FUNCTION turnkeep.scopes(p_workspace text, p_user text, p_key text)
RETURNS TABLE (scope text, scope_id text) LANGUAGE sql IMMUTABLE AS $$
    SELECT s.scope, s.scope_id
      FROM (VALUES (1, 'key', p_key), (2, 'user', p_user), (3, 'workspace', p_workspace)) AS s (n, scope, scope_id)
     WHERE s.scope_id IS NOT NULL
     ORDER BY s.n
$$;

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
    RETURN (SELECT count(*) FROM turnkeep.messages m WHERE m.turn_id = p_turn AND NOT m.internal);
END $$;

-- Where a turn starts: behind the head, or (edit, regenerate) where `p_beside` started, whose branch then gives way.
-- Beside a turn that was stopped before it began there is no such place: its successor takes its turn behind the head.
-- Returns the parent, and by how much the counters change before the turn itself is counted.
CREATE FUNCTION turnkeep.open_place(p_conversation text, p_head text, p_beside text,
                                    OUT parent text, OUT more_turns integer, OUT more_messages integer)
LANGUAGE plpgsql AS $$
DECLARE
    v_beside record;
BEGIN
    more_turns := 0;
    more_messages := 0;
    parent := p_head;
    IF p_beside IS NULL THEN
        RETURN;
    END IF;
    SELECT t.parent_turn_id, t.started_at INTO v_beside FROM turnkeep.turns t
     WHERE t.id = p_beside AND t.conversation_id = p_conversation;
    IF v_beside.started_at IS NOT NULL THEN
        parent := v_beside.parent_turn_id;
        SELECT c.more_turns, c.more_messages INTO more_turns, more_messages
          FROM turnkeep.show_chain(p_conversation, parent) c;
    END IF;
END $$;

-- Settle a waiting turn as cancelled, tell its readers, and give its message back.
CREATE FUNCTION turnkeep.cancel_waiting(p_turn turnkeep.turns, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_scope record;
BEGIN
    UPDATE turnkeep.turns t
       SET status = 'cancelled', settled_at = p_now, lease_until = NULL, last_seq = t.last_seq + 1,
           error = '{"code":"cancelled","message":"Stopped before it began."}'
     WHERE t.id = p_turn.id;
    INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
    VALUES (p_turn.id, p_turn.last_seq + 1, p_turn.org_id, 'error', turnkeep.stopped_json());
    FOR v_scope IN SELECT * FROM turnkeep.scopes(p_turn.workspace_id, p_turn.user_id, p_turn.key_id) LOOP
        UPDATE turnkeep.usage u
           SET ui_messages = u.ui_messages - (p_turn.source = 'ui')::integer,
               api_messages = u.api_messages - (p_turn.source = 'api')::integer
         WHERE u.org_id = p_turn.org_id AND u.scope = v_scope.scope AND u.scope_id = v_scope.scope_id
           AND u.month = p_turn.month;
    END LOOP;
END $$;

CREATE FUNCTION turnkeep.cancel_all_waiting(p_conversation text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_turn turnkeep.turns;
BEGIN
    FOR v_turn IN
        SELECT * FROM turnkeep.turns t
         WHERE t.conversation_id = p_conversation AND t.status = 'queued' ORDER BY t.ordinal FOR UPDATE
    LOOP
        PERFORM turnkeep.cancel_waiting(v_turn, p_now);
    END LOOP;
END $$;

-- Let the first waiting turn run, with a lease that has already ended, so that any worker may adopt it. In a deleted
-- conversation nothing starts any more: what waits there is cancelled. The conversation is locked and nothing runs.
CREATE FUNCTION turnkeep.promote(p_conversation text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_conversation turnkeep.conversations;
    v_turn         turnkeep.turns;
    v_place        record;
BEGIN
    SELECT * INTO v_turn FROM turnkeep.turns t
     WHERE t.conversation_id = p_conversation AND t.status = 'queued' ORDER BY t.ordinal LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT * INTO v_conversation FROM turnkeep.conversations c WHERE c.id = p_conversation;
    IF v_conversation.deleted_at IS NOT NULL THEN
        PERFORM turnkeep.cancel_all_waiting(p_conversation, p_now);
        RETURN NULL;
    END IF;
    SELECT * INTO v_place FROM turnkeep.open_place(p_conversation, v_conversation.head_turn_id, v_turn.beside_turn_id);
    UPDATE turnkeep.turns t
       SET status = 'running', attempt = 0, lease_until = 0, started_at = p_now, active = true,
           parent_turn_id = v_place.parent,
           -- Readers who left while it waited, or were cut off, have their time once more.
           watched_until = CASE WHEN t.watched_until IS NOT NULL
                                THEN greatest(t.watched_until, p_now + t.watched_ms) END
     WHERE t.id = v_turn.id;
    UPDATE turnkeep.conversations c
       SET turn_count = c.turn_count + 1 + v_place.more_turns,
           message_count = c.message_count + 1 + v_place.more_messages, updated_at = p_now
     WHERE c.id = p_conversation;
    RETURN v_turn.id;
END $$;

-- End waiting turns: each with this error and this last event, and with its message taken back from those it was counted
-- for. The counters are locked in the order of their keys.
CREATE FUNCTION turnkeep.cancel_turns(p_turns text[], p_now bigint, p_error text, p_event text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH ended AS (
        UPDATE turnkeep.turns t
           SET status = 'cancelled', settled_at = p_now, lease_until = NULL, last_seq = t.last_seq + 1, error = p_error
         WHERE t.id = ANY (p_turns) AND t.status = 'queued'
        RETURNING t.id, t.last_seq, t.org_id, t.workspace_id, t.user_id, t.key_id, t.source, t.month
    ), told AS (
        INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
        SELECT e.id, e.last_seq, e.org_id, 'error', p_event FROM ended e
    )
    INSERT INTO turnkeep.usage AS u (org_id, scope, scope_id, month, ui_messages, api_messages)
    SELECT e.org_id, s.scope, s.scope_id, e.month, -count(*) FILTER (WHERE e.source = 'ui'),
           -count(*) FILTER (WHERE e.source = 'api')
      FROM ended e
     CROSS JOIN LATERAL (VALUES ('key', e.key_id), ('user', e.user_id), ('workspace', e.workspace_id)) AS s (scope, scope_id)
     WHERE s.scope_id IS NOT NULL
     GROUP BY e.org_id, s.scope, s.scope_id, e.month
     ORDER BY e.org_id, s.scope, s.scope_id, e.month
    ON CONFLICT (org_id, scope, scope_id, month) DO UPDATE
       SET ui_messages = u.ui_messages + excluded.ui_messages, api_messages = u.api_messages + excluded.api_messages;
END $$;

-- For functions/40_conversations.sql and the append: refuse while a turn runs or waits.
CREATE FUNCTION turnkeep.must_wait(p_conversation text, p_is_new boolean, p_beside text, p_if_busy text,
                                   p_queue_limit integer, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_turn record;
BEGIN
    SELECT t.id, t.started_at INTO v_turn FROM turnkeep.turns t
     WHERE t.conversation_id = p_conversation AND t.status IN ('running', 'queued')
     ORDER BY t.status DESC, t.ordinal LIMIT 1;
    IF FOUND THEN
        PERFORM turnkeep.refuse('TK003', 'The conversation is busy.',
            json_build_object('turn_id', v_turn.id, 'started_at', v_turn.started_at)::text);
    END IF;
    RETURN false;
END $$;
