-- Pages, tables and the text of files: what writes them, and the client's functions that read them.

-- Write the passages of a page or of a file's text instead of those before.
CREATE FUNCTION turnkeep.index_passages(p_org text, p_workspace text, p_owner text, p_start integer[],
                                        p_stop integer[], p_place text[], p_tokens text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM turnkeep.passages p WHERE p.owner = p_owner AND p.org_id = p_org;
    INSERT INTO turnkeep.passages (org_id, workspace_id, owner, n, start, stop, place, tokens)
    SELECT p_org, p_workspace, p_owner, e.n, e.start, e.stop, e.place, e.tokens::tsvector
      FROM unnest(p_start, p_stop, p_place, p_tokens) WITH ORDINALITY AS e (start, stop, place, tokens, n);
END $$;

-- The same id again changes nothing.
CREATE FUNCTION turnkeep.create_page(p_org text, p_workspace text, p_page text, p_title text, p_content text,
                                     p_start integer[], p_stop integer[], p_place text[], p_tokens text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.pages (id, org_id, workspace_id, title, content, created_at, updated_at)
    SELECT p_page, w.org_id, w.id, p_title, p_content, n.now, n.now
      FROM turnkeep.workspaces w, (SELECT turnkeep.now_ms() AS now) n WHERE w.id = p_workspace AND w.org_id = p_org
    ON CONFLICT (id) DO UPDATE SET title = excluded.title;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such workspace.');
    END IF;
    PERFORM turnkeep.index_passages(p_org, p_workspace, p_page, p_start, p_stop, p_place, p_tokens);
END $$;

CREATE FUNCTION turnkeep.delete_page(p_org text, p_workspace text, p_page text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM turnkeep.pages p WHERE p.id = p_page AND p.org_id = p_org AND p.workspace_id = p_workspace;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM turnkeep.passages p WHERE p.owner = p_page AND p.org_id = p_org;
    RETURN true;
END $$;

CREATE FUNCTION turnkeep.save_file_text(p_org text, p_sha256 text, p_text text, p_problem text, p_start integer[],
                                        p_stop integer[], p_place text[], p_tokens text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.file_texts (org_id, sha256, text, problem, created_at)
    VALUES (p_org, p_sha256, p_text, p_problem, turnkeep.now_ms())
    ON CONFLICT (org_id, sha256) DO UPDATE SET text = excluded.text, problem = excluded.problem;
    PERFORM turnkeep.index_passages(p_org, NULL, p_sha256, p_start, p_stop, p_place, p_tokens);
END $$;

-- Make a table; the same id again changes nothing. The unique index decides who was first with a name.
CREATE FUNCTION turnkeep.create_table(p_org text, p_workspace text, p_table text, p_name text, p_name_key text,
                                      p_description text, p_columns text) RETURNS SETOF turnkeep.tables
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO turnkeep.tables AS t
           (id, org_id, workspace_id, name, name_key, description, columns, created_at, updated_at)
    SELECT p_table, w.org_id, w.id, p_name, p_name_key, p_description, p_columns, n.now, n.now
      FROM turnkeep.workspaces w, (SELECT turnkeep.now_ms() AS now) n WHERE w.org_id = p_org AND w.id = p_workspace
    ON CONFLICT (id) DO UPDATE SET name = excluded.name
    RETURNING t.*;
EXCEPTION WHEN unique_violation THEN
    PERFORM turnkeep.refuse_name(p_name);
END $$;

CREATE FUNCTION turnkeep.update_table(p_table text, p_name text, p_name_key text, p_description text, p_columns text)
RETURNS SETOF turnkeep.tables LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    UPDATE turnkeep.tables t
       SET name = p_name, name_key = p_name_key, description = p_description, columns = p_columns,
           updated_at = turnkeep.now_ms()
     WHERE t.id = p_table
    RETURNING t.*;
EXCEPTION WHEN unique_violation THEN
    PERFORM turnkeep.refuse_name(p_name);
END $$;

CREATE FUNCTION turnkeep.refuse_name(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM turnkeep.refuse('TK007', format('There is a table called %L already. Choose another name.', p_name));
END $$;

-- The table of a writer, locked; a refusal if there is none.
CREATE FUNCTION turnkeep.own_table(p_org text, p_workspace text, p_table text) RETURNS turnkeep.tables
LANGUAGE plpgsql AS $$
DECLARE
    v_table turnkeep.tables;
BEGIN
    SELECT * INTO v_table FROM turnkeep.tables t
     WHERE t.id = p_table AND t.org_id = p_org AND t.workspace_id = p_workspace AND t.deleted_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such table.');
    END IF;
    RETURN v_table;
END $$;

-- Rows under the next numbers, and their batch. One of this name that is there already is the answer, and nothing is added.
CREATE FUNCTION turnkeep.add_rows(p_org text, p_workspace text, p_table text, p_batch text, p_digest text,
                                  p_cells text[], p_tokens text[]) RETURNS turnkeep.row_batches
LANGUAGE plpgsql AS $$
DECLARE
    v_table turnkeep.tables := turnkeep.own_table(p_org, p_workspace, p_table);
    v_batch turnkeep.row_batches;
BEGIN
    SELECT * INTO v_batch FROM turnkeep.row_batches b WHERE b.table_id = p_table AND b.batch = p_batch;
    IF FOUND THEN
        RETURN v_batch;
    END IF;
    INSERT INTO turnkeep.row_batches (table_id, batch, digest, first, count, created_at)
    VALUES (p_table, p_batch, p_digest, v_table.last_row + 1, cardinality(p_cells), turnkeep.now_ms())
    RETURNING * INTO v_batch;
    PERFORM turnkeep.insert_rows(p_org, p_table, v_batch.first, p_cells, p_tokens);
    UPDATE turnkeep.tables t
       SET row_count = t.row_count + cardinality(p_cells), last_row = t.last_row + cardinality(p_cells),
           updated_at = turnkeep.now_ms()
     WHERE t.id = p_table;
    RETURN v_batch;
END $$;

CREATE FUNCTION turnkeep.insert_rows(p_org text, p_table text, p_first integer, p_cells text[], p_tokens text[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO turnkeep.table_rows (table_id, number, org_id, cells, tokens, created_at, updated_at)
    SELECT p_table, p_first + e.n::integer - 1, p_org, e.cells::json, e.tokens::tsvector, x.now, x.now
      FROM unnest(p_cells, p_tokens) WITH ORDINALITY AS e (cells, tokens, n), (SELECT turnkeep.now_ms() AS now) x
    ON CONFLICT (table_id, number) DO NOTHING;
END $$;

CREATE FUNCTION turnkeep.change_row(p_org text, p_workspace text, p_table text, p_number integer, p_cells text,
                                    p_tokens text) RETURNS SETOF turnkeep.table_rows LANGUAGE plpgsql AS $$
BEGIN
    PERFORM turnkeep.own_table(p_org, p_workspace, p_table);
    RETURN QUERY
    UPDATE turnkeep.table_rows r SET cells = p_cells::json, tokens = p_tokens::tsvector, updated_at = turnkeep.now_ms()
     WHERE r.table_id = p_table AND r.number = p_number
    RETURNING r.*;
END $$;

CREATE FUNCTION turnkeep.delete_row(p_org text, p_workspace text, p_table text, p_number integer) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM turnkeep.own_table(p_org, p_workspace, p_table);
    DELETE FROM turnkeep.table_rows r WHERE r.table_id = p_table AND r.number = p_number;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE turnkeep.tables t SET row_count = t.row_count - 1, updated_at = turnkeep.now_ms() WHERE t.id = p_table;
    RETURN true;
END $$;

-- Reserve numbers; the answer is the first. The same import again answers the same.
CREATE FUNCTION turnkeep.begin_import(p_org text, p_workspace text, p_table text, p_import text, p_count integer)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_table turnkeep.tables := turnkeep.own_table(p_org, p_workspace, p_table);
BEGIN
    IF v_table.import_id = p_import THEN
        RETURN v_table.import_first;
    ELSIF v_table.import_id IS NOT NULL THEN
        PERFORM turnkeep.refuse(
            'TK007', 'Another import into this table is under way. Wait until it has ended.');
    END IF;
    UPDATE turnkeep.tables t
       SET import_id = p_import, import_first = t.last_row + 1, import_last = t.last_row + p_count,
           last_row = t.last_row + p_count, import_at = turnkeep.now_ms()
     WHERE t.id = p_table;
    RETURN v_table.last_row + 1;
END $$;

CREATE FUNCTION turnkeep.import_rows(p_table text, p_import text, p_first integer, p_cells text[], p_tokens text[])
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_org text;
BEGIN
    UPDATE turnkeep.tables t SET import_at = turnkeep.now_ms()
     WHERE t.id = p_table AND t.import_id = p_import AND t.deleted_at IS NULL
       AND p_first >= t.import_first AND p_first + cardinality(p_cells) - 1 <= t.import_last
    RETURNING t.org_id INTO v_org;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM turnkeep.insert_rows(v_org, p_table, p_first, p_cells, p_tokens);
    RETURN true;
END $$;

-- Show what was imported, and keep it as a batch if that has a name. No row means that the import was given up.
CREATE FUNCTION turnkeep.finish_import(p_table text, p_import text, p_batch text, p_digest text)
RETURNS SETOF turnkeep.tables LANGUAGE plpgsql AS $$
DECLARE
    v_table turnkeep.tables;
BEGIN
    SELECT * INTO v_table FROM turnkeep.tables t
     WHERE t.id = p_table AND t.import_id = p_import AND t.deleted_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_batch IS NOT NULL THEN
        INSERT INTO turnkeep.row_batches (table_id, batch, digest, first, count, created_at)
        VALUES (p_table, p_batch, p_digest, v_table.import_first, v_table.import_last - v_table.import_first + 1,
                turnkeep.now_ms())
        ON CONFLICT (table_id, batch) DO NOTHING;
        IF NOT FOUND THEN
            PERFORM turnkeep.refuse('TK007', 'Rows were added under this Idempotency-Key meanwhile. '
                                             || 'Nothing was imported; send it again to see.');
        END IF;
    END IF;
    RETURN QUERY
    UPDATE turnkeep.tables t
       SET row_count = t.row_count + (t.import_last - t.import_first + 1), import_id = NULL, import_first = NULL,
           import_last = NULL, import_at = NULL, updated_at = turnkeep.now_ms()
     WHERE t.id = p_table
    RETURNING t.*;
END $$;

-- Erase up to so many rows that nobody can see any more: of imports silent since then, and of deleted tables.
CREATE FUNCTION turnkeep.erase_rows(p_before bigint, p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_table turnkeep.tables;
    v_count integer := 0;
    v_some  integer;
BEGIN
    FOR v_table IN
        SELECT * FROM turnkeep.tables t
         WHERE t.deleted_at IS NOT NULL OR t.import_at < p_before
         ORDER BY t.id LIMIT 20 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM turnkeep.table_rows r
         WHERE r.table_id = v_table.id AND r.number IN (
               SELECT x.number FROM turnkeep.table_rows x
                WHERE x.table_id = v_table.id
                  AND (v_table.deleted_at IS NOT NULL OR x.number BETWEEN v_table.import_first AND v_table.import_last)
                ORDER BY x.number LIMIT p_limit - v_count);
        GET DIAGNOSTICS v_some = ROW_COUNT;
        v_count := v_count + v_some;
        EXIT WHEN v_count >= p_limit;
        IF v_table.deleted_at IS NULL THEN
            UPDATE turnkeep.tables t SET import_id = NULL, import_first = NULL, import_last = NULL, import_at = NULL
             WHERE t.id = v_table.id;
        ELSE
            DELETE FROM turnkeep.row_batches b WHERE b.table_id = v_table.id;
            DELETE FROM turnkeep.tables t WHERE t.id = v_table.id;
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

-- Erase texts whose last file is gone.
CREATE FUNCTION turnkeep.erase_texts(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_lost record;
    v_some integer := 0;
BEGIN
    FOR v_lost IN
        SELECT t.org_id, t.sha256 FROM turnkeep.file_texts t
         WHERE NOT EXISTS (SELECT 1 FROM turnkeep.files f WHERE f.org_id = t.org_id AND f.sha256 = t.sha256)
         LIMIT p_limit
    LOOP
        DELETE FROM turnkeep.passages p WHERE p.owner = v_lost.sha256 AND p.org_id = v_lost.org_id;
        DELETE FROM turnkeep.file_texts t WHERE t.sha256 = v_lost.sha256 AND t.org_id = v_lost.org_id;
        v_some := v_some + 1;
    END LOOP;
    RETURN v_some;
END $$;

-- The client path

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
        RAISE EXCEPTION USING ERRCODE = 'TK001', MESSAGE = 'No such table.';
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
