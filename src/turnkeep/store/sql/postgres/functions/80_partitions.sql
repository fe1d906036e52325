-- The partitions of `messages` and `turn_events`. `io/partitions.py` decides which are made.
--
-- Both functions give up at once while a migration is under way, and soon where a lock is not free, as requests wait behind
-- it: a dump holds its locks for hours. The caller tries again later. The lock is that of migrations (`io/migrate.py`).

-- Make a partition for the turns from `p_first` on, before `p_end`; false if that was not possible. Rows of such turns that
-- came before it are moved into it, while requests wait: so none is made while `…_other` has more than 16 MB.
CREATE FUNCTION turnkeep.make_partition(p_table text, p_name text, p_first text, p_end text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '300ms' AS $$
DECLARE
    v_other text := p_table || '_other';
BEGIN
    IF NOT pg_try_advisory_xact_lock(8391739299248563568) OR to_regclass(format('turnkeep.%I', p_name)) IS NOT NULL
            OR pg_total_relation_size(format('turnkeep.%I', v_other)) > 16777216 THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE turnkeep.%I (LIKE turnkeep.%I INCLUDING ALL) WITH (toast_tuple_target = 8160)',
                   p_name, p_table);
    EXECUTE format('ALTER TABLE turnkeep.%I ENABLE ROW LEVEL SECURITY', p_name);
    EXECUTE format('ALTER TABLE turnkeep.%I FORCE ROW LEVEL SECURITY', p_name);
    EXECUTE format('CREATE POLICY engine ON turnkeep.%I TO turnkeep_engine USING (true) WITH CHECK (true)', p_name);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON turnkeep.%I TO turnkeep_engine', p_name);
    EXECUTE format('LOCK TABLE turnkeep.%I IN ACCESS EXCLUSIVE MODE', v_other);
    EXECUTE format('WITH moved AS (DELETE FROM turnkeep.%I o WHERE o.turn_id >= %L AND o.turn_id < %L RETURNING o.*) '
                   'INSERT INTO turnkeep.%I SELECT m.* FROM moved m', v_other, p_first, p_end, p_name);
    EXECUTE format('ALTER TABLE turnkeep.%I ATTACH PARTITION turnkeep.%I FOR VALUES FROM (%L) TO (%L)',
                   p_table, p_name, p_first, p_end);
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END $$;

-- Drop a partition that has no rows; false if it has some, or if that was not possible. The newest rows are erased last, so
-- they are looked for first.
CREATE FUNCTION turnkeep.drop_partition(p_table text, p_name text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '300ms' AS $$
DECLARE
    v_newest  text := format('SELECT p.turn_id FROM turnkeep.%I p ORDER BY p.turn_id DESC LIMIT 1', p_name);
    v_turn_id text;
BEGIN
    IF row_security_active(format('turnkeep.%I', p_name)) AND NOT pg_has_role(current_user, 'turnkeep_engine', 'USAGE') THEN
        RETURN false;  -- this user sees no rows, though there may be some
    END IF;
    EXECUTE v_newest INTO v_turn_id;
    IF v_turn_id IS NOT NULL OR NOT pg_try_advisory_xact_lock(8391739299248563568) THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE ONLY turnkeep.%I IN ACCESS EXCLUSIVE MODE', p_table);
    EXECUTE format('LOCK TABLE turnkeep.%I IN ACCESS EXCLUSIVE MODE', p_name);
    EXECUTE v_newest INTO v_turn_id;
    IF v_turn_id IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE turnkeep.%I', p_name);
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END $$;
