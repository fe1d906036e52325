-- Leases, and the readers of running turns. Adoption, stops and the queue are decided by `store/rules`.

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

-- The last reader has left these turns; the moment until which they are watched never moves forwards.
CREATE FUNCTION turnkeep.unwatch(p_turn text[], p_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_until bigint := turnkeep.now_ms() + p_ms;
BEGIN
    FOR i IN 1 .. array_length(p_turn, 1) LOOP
        UPDATE turnkeep.turns t SET watched_until = v_until, watched_ms = p_ms
         WHERE t.id = p_turn[i] AND t.status IN ('running', 'queued') AND NOT t.background AND t.watched_until > v_until;
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
