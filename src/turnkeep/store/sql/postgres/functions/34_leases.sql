-- Who runs what: leases, adoption, stops, and the queue.

-- Extend these leases; one row for each that is still held.
CREATE FUNCTION turnkeep.renew(p_turn text[], p_attempt integer[], p_lease_ms bigint)
RETURNS TABLE (turn_id text, attempt integer, cancel_requested boolean, files_written integer) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := turnkeep.now_ms();
BEGIN
    FOR i IN 1 .. array_length(p_turn, 1) LOOP
        UPDATE turnkeep.turns t SET lease_until = v_now + p_lease_ms
         WHERE t.id = p_turn[i] AND t.attempt = p_attempt[i] AND t.status = 'running'
        RETURNING t.id, t.attempt, t.cancel_requested_at IS NOT NULL, t.files_written
             INTO turn_id, attempt, cancel_requested, files_written;
        IF FOUND THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION turnkeep.hand_over(p_turn text[], p_attempt integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. array_length(p_turn, 1) LOOP
        UPDATE turnkeep.turns t SET lease_until = 0
         WHERE t.id = p_turn[i] AND t.attempt = p_attempt[i] AND t.status = 'running';
    END LOOP;
END $$;

CREATE FUNCTION turnkeep.release(p_worker text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM turnkeep.turns t
      WHERE t.status = 'running' AND t.worker = ANY (p_worker) ORDER BY t.id FOR UPDATE;
    UPDATE turnkeep.turns t SET lease_until = 0 WHERE t.status = 'running' AND t.worker = ANY (p_worker);
END $$;

-- Take over turns whose lease has ended, the longest silent first, passing over those that somebody else is taking.
-- A lease of 0 was let go on purpose (hand-over, promotion): that is no failure. Else a turn that got no further since its
-- last adoption has failed once more.
CREATE FUNCTION turnkeep.adopt(p_worker text, p_lease_ms bigint, p_limit integer, p_turn text)
RETURNS TABLE (turn turnkeep.turns, is_first_start boolean) LANGUAGE plpgsql AS $$
DECLARE
    v_now    bigint := turnkeep.now_ms();
    v_before turnkeep.turns;
BEGIN
    FOR v_before IN SELECT * FROM turnkeep.expired_turns(v_now, p_limit, p_turn) LOOP
        is_first_start := v_before.attempt = 0;
        UPDATE turnkeep.turns t
           SET attempt = t.attempt + 1, worker = p_worker, lease_until = v_now + p_lease_ms,
               last_seq = t.last_seq + 1, seq_at_adoption = t.last_seq + 1,
               failures = CASE WHEN is_first_start THEN 0
                               WHEN t.lease_until = 0 THEN t.failures
                               WHEN t.last_seq > t.seq_at_adoption THEN 0
                               ELSE t.failures + 1 END,
               -- The readers of the worker that went silent were cut off, and have not left: they are forgotten.
               watched_until = CASE WHEN is_first_start THEN t.watched_until END
         WHERE t.id = v_before.id
        RETURNING * INTO turn;
        INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
        VALUES (turn.id, turn.last_seq, turn.org_id, CASE WHEN is_first_start THEN 'turn' ELSE 'reset' END,
                CASE WHEN is_first_start
                     THEN turnkeep.began_json(turn.id, turn.conversation_id, turnkeep.question_of(turn.id), 'running', 1)
                     ELSE turnkeep.reset_json(turn.attempt, CASE WHEN v_before.lease_until = 0 THEN 'handover'
                                                                 ELSE 'lease_expired' END) END);
        RETURN NEXT;
    END LOOP;
END $$;

-- Turns whose lease has ended, locked. For the one that is named this waits: its holder may be writing just now.
CREATE FUNCTION turnkeep.expired_turns(p_now bigint, p_limit integer, p_turn text)
RETURNS SETOF turnkeep.turns LANGUAGE plpgsql AS $$
BEGIN
    IF p_turn IS NOT NULL THEN
        RETURN QUERY
        SELECT * FROM turnkeep.turns t
         WHERE t.id = p_turn AND t.status = 'running' AND t.lease_until < p_now FOR UPDATE;
    ELSE
        RETURN QUERY
        SELECT * FROM turnkeep.turns t
         WHERE t.status = 'running' AND t.lease_until < p_now
         ORDER BY t.lease_until, t.id LIMIT p_limit FOR UPDATE SKIP LOCKED;
    END IF;
END $$;

CREATE FUNCTION turnkeep.question_of(p_turn text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT m.id FROM turnkeep.messages m WHERE m.turn_id = p_turn AND m.turn_sequence = 0);
END $$;

-- Wherever turns wait and none runs, let the first run. A conversation that somebody else works on is left to them.
CREATE FUNCTION turnkeep.promote_waiting() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    v_conversation text;
    v_promoted     text;
BEGIN
    FOR v_conversation IN
        SELECT DISTINCT q.conversation_id FROM turnkeep.turns q
         WHERE q.status = 'queued'
           AND NOT EXISTS (SELECT 1 FROM turnkeep.turns r WHERE r.conversation_id = q.conversation_id AND r.status = 'running')
         ORDER BY q.conversation_id
    LOOP
        PERFORM 1 FROM turnkeep.conversations c WHERE c.id = v_conversation FOR UPDATE;
        IF NOT EXISTS (SELECT 1 FROM turnkeep.turns r WHERE r.conversation_id = v_conversation AND r.status = 'running') THEN
            v_promoted := turnkeep.promote(v_conversation, turnkeep.now_ms());
            IF v_promoted IS NOT NULL THEN
                RETURN NEXT v_promoted;
            END IF;
        END IF;
    END LOOP;
END $$;

-- Ask for a stop: a waiting turn ends here and now, a running one is marked for its holder.
CREATE FUNCTION turnkeep.request_cancel(p_org text, p_workspace text, p_owner text, p_turn text)
RETURNS SETOF turnkeep.turns LANGUAGE plpgsql AS $$
DECLARE
    v_turn turnkeep.turns;
BEGIN
    PERFORM 1 FROM turnkeep.conversations c
      WHERE c.id = (SELECT t.conversation_id FROM turnkeep.turns t WHERE t.id = p_turn)
        AND c.org_id = p_org AND c.workspace_id = p_workspace
        AND (p_owner IS NULL OR c.user_id = p_owner) AND c.deleted_at IS NULL
        FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such turn.');
    END IF;
    SELECT * INTO v_turn FROM turnkeep.turns t WHERE t.id = p_turn FOR UPDATE;
    IF v_turn.status = 'queued' THEN
        PERFORM turnkeep.cancel_waiting(v_turn, turnkeep.now_ms());
    ELSIF v_turn.status = 'running' AND v_turn.cancel_requested_at IS NULL THEN
        UPDATE turnkeep.turns t SET cancel_requested_at = turnkeep.now_ms() WHERE t.id = p_turn;
    END IF;
    RETURN QUERY SELECT * FROM turnkeep.turns t WHERE t.id = p_turn;
END $$;

-- Readers are attached to these foreground turns; the moment until which they count never moves backwards.
CREATE FUNCTION turnkeep.watch(p_turn text[], p_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_until bigint := turnkeep.now_ms() + p_ms;
BEGIN
    FOR i IN 1 .. array_length(p_turn, 1) LOOP
        UPDATE turnkeep.turns t SET watched_until = greatest(t.watched_until, v_until), watched_ms = p_ms
         WHERE t.id = p_turn[i] AND t.status IN ('running', 'queued') AND NOT t.background;
    END LOOP;
END $$;

CREATE FUNCTION turnkeep.cancel_unwatched() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    v_now  bigint := turnkeep.now_ms();
    v_turn text;
BEGIN
    FOR v_turn IN
        SELECT t.id FROM turnkeep.turns t
         WHERE t.status = 'running' AND NOT t.background AND t.watched_until < v_now AND t.cancel_requested_at IS NULL
         ORDER BY t.id FOR UPDATE
    LOOP
        UPDATE turnkeep.turns t SET cancel_requested_at = v_now WHERE t.id = v_turn;
        RETURN NEXT v_turn;
    END LOOP;
END $$;
