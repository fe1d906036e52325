-- `messages` and `turn_events` are divided by time, so that what is old can be dropped as a whole. Ids of turns begin with
-- their time, so a partition has a range of them. The table as it was becomes the first partition, up to the end of the
-- month after next. Later ones are made by the server (`functions/80_partitions.sql`). A row that belongs to none of them
-- goes to the partition `…_other`.
--
-- No step keeps requests waiting for long: the rows are read without a lock (VALIDATE), so that the last steps need not
-- read them. A step that was done is skipped if an earlier try did not come to the end.

CREATE OR REPLACE FUNCTION turnkeep.limit_first(p_table text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_place regclass := format('turnkeep.%I', p_table);
    v_month timestamp := date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month';
    v_known text := (SELECT substring(pg_get_constraintdef(c.oid) FROM 'turn_[0-9a-f]+') FROM pg_constraint c
                      WHERE c.conrelid = v_place AND c.conname = p_table || '_first');
    v_last  text;
BEGIN
    IF (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = v_place) OR v_known >= turnkeep.first_id(v_month) COLLATE "C" THEN
        RETURN;
    END IF;
    -- A server with a wrong clock may have made ids of a later month.
    EXECUTE format('SELECT max(turn_id) FROM turnkeep.%I', p_table) INTO v_last;
    v_month := greatest(v_month, date_trunc('month', to_timestamp(
        ('x0000' || substr(v_last, 6, 12))::bit(64)::bigint / 1000) AT TIME ZONE 'UTC')) + interval '2 months';
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I, ADD CONSTRAINT %2$I CHECK (turn_id < %L) NOT VALID',
                   v_place, p_table || '_first', turnkeep.first_id(v_month));
END $$;

-- The first id of a turn that can be made in this month.
CREATE OR REPLACE FUNCTION turnkeep.first_id(p_month timestamp) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'turn_' || lpad(to_hex((extract(epoch FROM p_month) * 1000)::bigint), 12, '0')
$$;

-- Make the table, which has its limit, the first partition of one with the same name. What is on the table stays on both:
-- rights and policies of the engine. The client reads the table as a whole, and no partition.
CREATE OR REPLACE FUNCTION turnkeep.divide(p_table text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_first text := p_table || '_first';
    v_other text := p_table || '_other';
    v_end   text;
    v_index record;
BEGIN
    IF (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = format('turnkeep.%I', p_table)::regclass) THEN
        RETURN;
    END IF;
    SELECT substring(pg_get_constraintdef(c.oid) FROM 'turn_[0-9a-f]+') INTO STRICT v_end FROM pg_constraint c
     WHERE c.conrelid = format('turnkeep.%I', p_table)::regclass AND c.conname = v_first AND c.convalidated;
    EXECUTE format('ALTER TABLE turnkeep.%I RENAME TO %I', p_table, v_first);
    FOR v_index IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                    WHERE i.indrelid = format('turnkeep.%I', v_first)::regclass
    LOOP
        EXECUTE format('ALTER INDEX turnkeep.%I RENAME TO %I', v_index.relname,
                       v_first || substr(v_index.relname, length(p_table) + 1));
    END LOOP;
    EXECUTE format('CREATE TABLE turnkeep.%I (LIKE turnkeep.%I INCLUDING ALL EXCLUDING CONSTRAINTS) '
                   'PARTITION BY RANGE (turn_id)', p_table, v_first);
    EXECUTE format('ALTER TABLE turnkeep.%I ATTACH PARTITION turnkeep.%I FOR VALUES FROM (MINVALUE) TO (%L)',
                   p_table, v_first, v_end);
    EXECUTE format('ALTER TABLE turnkeep.%I DROP CONSTRAINT %1$I', v_first);
    EXECUTE format('CREATE TABLE turnkeep.%I (LIKE turnkeep.%I INCLUDING ALL) WITH (toast_tuple_target = 8160)',
                   v_other, p_table);
    EXECUTE format('ALTER TABLE turnkeep.%I ATTACH PARTITION turnkeep.%I DEFAULT', p_table, v_other);
    EXECUTE format('REVOKE ALL ON turnkeep.%I FROM turnkeep_client', v_first);
    EXECUTE format('DROP POLICY IF EXISTS client ON turnkeep.%I', v_first);
    FOREACH v_first IN ARRAY ARRAY[p_table, v_other] LOOP
        EXECUTE format('ALTER TABLE turnkeep.%I ENABLE ROW LEVEL SECURITY', v_first);
        EXECUTE format('ALTER TABLE turnkeep.%I FORCE ROW LEVEL SECURITY', v_first);
        EXECUTE format('CREATE POLICY engine ON turnkeep.%I TO turnkeep_engine USING (true) WITH CHECK (true)', v_first);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON turnkeep.%I TO turnkeep_engine', v_first);
    END LOOP;
END $$;

SELECT turnkeep.limit_first('messages');
-- commit
SELECT turnkeep.limit_first('turn_events');
-- commit
DO $$
DECLARE
    v_limit record;
BEGIN
    FOR v_limit IN SELECT c.conrelid::regclass AS place, c.conname FROM pg_constraint c
                    WHERE c.conname IN ('messages_first', 'turn_events_first') AND NOT c.convalidated
                      AND c.connamespace = 'turnkeep'::regnamespace
    LOOP
        EXECUTE format('ALTER TABLE %s VALIDATE CONSTRAINT %I', v_limit.place, v_limit.conname);
    END LOOP;
END $$;
-- commit
SELECT turnkeep.divide('messages');
DROP POLICY IF EXISTS client ON turnkeep.messages;
CREATE POLICY client ON turnkeep.messages FOR SELECT TO turnkeep_client USING (
    NOT internal
    AND EXISTS (SELECT 1 FROM turnkeep.conversations c WHERE c.id = messages.conversation_id OFFSET 0)
);
GRANT SELECT ON turnkeep.messages TO turnkeep_client;
-- commit
SELECT turnkeep.divide('turn_events');
ALTER INDEX IF EXISTS turnkeep.turn_events_turn_id_idx RENAME TO turn_events_one_terminal;
DROP FUNCTION turnkeep.limit_first, turnkeep.first_id, turnkeep.divide;

-- Events of an old turn that do not follow from its rows, as a JSON array in one row. So the partition that had them can be
-- dropped. The row goes with its turn, whichever release erases that.

CREATE TABLE turnkeep.old_events (
    turn_id text COLLATE "C" PRIMARY KEY REFERENCES turnkeep.turns ON DELETE CASCADE,
    org_id  text COLLATE "C" NOT NULL,
    events  text NOT NULL
);
ALTER TABLE turnkeep.old_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE turnkeep.old_events FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON turnkeep.old_events TO turnkeep_engine USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON turnkeep.old_events TO turnkeep_engine;
