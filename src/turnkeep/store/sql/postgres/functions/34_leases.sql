-- Leases, and the readers of running turns. Adoption, stops and the queue are decided by `store/rules`.

-- Extend leases (those with an attempt), and let turns be watched (those of `p_watched`); one row for each lease that is still
-- held. Readers are attached to watched turns; the moment until which they count never moves backwards. The turns come in
-- the order of their ids, which is the lock order. Both are one change of the row.
CREATE FUNCTION turnkeep.renew(
    p_turn text[], p_attempt integer[], p_lease_ms bigint, p_watched boolean[], p_watch_ms bigint
) RETURNS TABLE (turn_id text, attempt integer, cancel_requested boolean, files_written integer) LANGUAGE plpgsql AS $$
DECLARE
    v_now     bigint := turnkeep.now_ms();
    v_is_held boolean;
BEGIN
    FOR i IN 1 .. coalesce(array_length(p_turn, 1), 0) LOOP
        UPDATE turnkeep.turns t
           SET lease_until = CASE WHEN t.attempt = p_attempt[i] AND t.status = 'running' THEN v_now + p_lease_ms
                                  ELSE t.lease_until END,
               watched_until = CASE WHEN p_watched[i] AND NOT t.background
                                    THEN greatest(t.watched_until, v_now + p_watch_ms) ELSE t.watched_until END,
               watched_ms = CASE WHEN p_watched[i] AND NOT t.background THEN p_watch_ms ELSE t.watched_ms END
         WHERE t.id = p_turn[i]
           AND ((t.attempt = p_attempt[i] AND t.status = 'running')
                OR (p_watched[i] AND t.status IN ('running', 'queued') AND NOT t.background))
        RETURNING t.id, t.attempt, t.cancel_requested_at IS NOT NULL, t.files_written,
                  t.attempt = p_attempt[i] AND t.status = 'running'
             INTO turn_id, attempt, cancel_requested, files_written, v_is_held;
        IF FOUND AND v_is_held THEN
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
      WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.worker = ANY (p_worker) ORDER BY t.id FOR UPDATE;
    UPDATE turnkeep.turns t SET lease_until = 0 WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.worker = ANY (p_worker);
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
         WHERE t.status = 'running' AND t.waiting_until IS NULL AND NOT t.background AND t.watched_until < v_now
           AND t.cancel_requested_at IS NULL
         ORDER BY t.id FOR UPDATE
    LOOP
        UPDATE turnkeep.turns t SET cancel_requested_at = v_now WHERE t.id = v_turn;
        RETURN NEXT v_turn;
    END LOOP;
END $$;

-- What a sweep finds to do (`DueWork`). Every part looks only at turns that are queued, run or wait, or at conversations that
-- wait for the index: the conditions are those of the statements that do the work. OFFSET 0 keeps a condition a look-up for
-- each row found; without it the planner may read every conversation there is. Nor may it read every turn, which it does
-- where it thinks that many of them run: those that wait count as running in its statistics. The queue is looked at only with
-- `p_queue`: every queued turn costs something, also one behind a turn that waits for a week.
CREATE FUNCTION turnkeep.due_work(p_queue boolean) RETURNS TABLE (
    has_queued boolean, has_expired boolean, has_unwatched boolean, has_unindexed boolean, has_erasures boolean,
    erased_at bigint, has_deliveries boolean, has_overdue boolean
) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT CASE WHEN p_queue THEN
               EXISTS (SELECT 1 FROM turnkeep.turns q
                        WHERE q.status = 'queued'
                          AND NOT EXISTS (SELECT 1 FROM turnkeep.turns r
                                           WHERE r.conversation_id = q.conversation_id AND r.status = 'running'))
               ELSE false END,
           EXISTS (SELECT 1 FROM turnkeep.turns t
                    WHERE t.status = 'running' AND t.waiting_until IS NULL AND t.lease_until < n.now),
           EXISTS (SELECT 1 FROM turnkeep.turns t
                    WHERE t.status = 'running' AND t.waiting_until IS NULL AND NOT t.background AND t.watched_until < n.now
                      AND t.cancel_requested_at IS NULL),
           EXISTS (SELECT 1
                     FROM turnkeep.unindexed u
                    CROSS JOIN LATERAL (SELECT c.* FROM turnkeep.conversations c WHERE c.id = u.conversation_id OFFSET 0) c
                    WHERE NOT u.is_parked
                      AND ((c.indexed_ordinal < c.next_ordinal - 1
                            AND NOT EXISTS (SELECT 1 FROM turnkeep.turns t
                                             WHERE t.conversation_id = c.id AND t.active IN (true, false)
                                               AND t.ordinal = c.indexed_ordinal + 1 AND t.settled_at IS NULL
                                               AND t.waiting_until IS NULL OFFSET 0))
                        OR (c.title IS NOT NULL
                            AND NOT EXISTS (SELECT 1 FROM turnkeep.search_entries e
                                             WHERE e.conversation_id = c.id AND e.turn_id = c.id AND e.turn_sequence = -1
                                            OFFSET 0)))),
           EXISTS (SELECT 1 FROM turnkeep.erasures e WHERE e.done_at IS NULL AND e.not_before <= n.now),
           coalesce((SELECT max(e.erased_at) FROM turnkeep.erasures e WHERE e.erased_at IS NOT NULL), 0),
           coalesce((SELECT min(d.not_before) FROM turnkeep.webhook_deliveries d WHERE d.not_before IS NOT NULL) <= n.now, false),
           EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.waiting_until <= n.now)
      FROM (SELECT turnkeep.now_ms() AS now OFFSET 0) n;
END $$;
