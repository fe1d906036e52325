-- The rows of the file bags.

-- Add a file under the first of these names that is free in its bag; no row if none is. The conversation's lock makes
-- that choice safe when many come at once. The same file id again answers with what is there.
CREATE FUNCTION turnkeep.add_file(
    p_org text, p_workspace text, p_user text, p_owner text, p_file text, p_conversation text, p_names text[],
    p_name_keys text[], p_mime_type text, p_size bigint, p_sha256 text, p_storage_key text, p_source text
) RETURNS SETOF turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_place integer := 1;
BEGIN
    IF p_conversation IS NOT NULL THEN
        PERFORM turnkeep.own_conversation(p_org, p_workspace, p_owner, p_conversation);
        SELECT min(c.n) INTO v_place FROM unnest(p_name_keys) WITH ORDINALITY AS c (name_key, n)
         WHERE NOT EXISTS (SELECT 1 FROM turnkeep.files f
                            WHERE f.conversation_id = p_conversation AND f.name_key = c.name_key
                              AND f.deleted_at IS NULL AND f.id <> p_file);
    END IF;
    IF v_place IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO turnkeep.files
           (id, org_id, workspace_id, user_id, conversation_id, name, name_key, mime_type, size, sha256, storage_key,
            source, status, created_at)
    VALUES (p_file, p_org, p_workspace, p_user, p_conversation, p_names[v_place], p_name_keys[v_place], p_mime_type,
            p_size, p_sha256, p_storage_key, p_source, CASE WHEN p_sha256 IS NULL THEN 'pending' ELSE 'ready' END,
            turnkeep.now_ms())
    ON CONFLICT (id) DO NOTHING;
    RETURN QUERY SELECT * FROM turnkeep.files f
                  WHERE f.id = p_file AND f.org_id = p_org AND f.storage_key = p_storage_key;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK007', 'This file id is taken.');
    END IF;
END $$;

-- A file that this owner may change, locked: that of the owner's conversation, or without one the owner's own.
CREATE FUNCTION turnkeep.own_file(p_org text, p_workspace text, p_owner text, p_file text)
RETURNS turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_file turnkeep.files;
BEGIN
    SELECT * INTO v_file FROM turnkeep.files f
     WHERE f.id = p_file AND f.org_id = p_org AND f.workspace_id = p_workspace AND f.deleted_at IS NULL
       AND (p_owner IS NULL OR f.conversation_id IS NOT NULL OR f.user_id = p_owner)
       AND (f.conversation_id IS NULL OR EXISTS (
               SELECT 1 FROM turnkeep.conversations c
                WHERE c.id = f.conversation_id AND c.deleted_at IS NULL AND (p_owner IS NULL OR c.user_id = p_owner)))
       FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such file.');
    END IF;
    RETURN v_file;
END $$;

CREATE FUNCTION turnkeep.complete_file(p_org text, p_workspace text, p_owner text, p_file text, p_size bigint,
                                       p_sha256 text) RETURNS SETOF turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_file turnkeep.files := turnkeep.own_file(p_org, p_workspace, p_owner, p_file);
BEGIN
    IF v_file.status = 'ready' THEN
        IF v_file.sha256 IS DISTINCT FROM p_sha256 THEN
            PERFORM turnkeep.refuse('TK007', 'This file is complete already, with other bytes.');
        END IF;
        RETURN NEXT v_file;
        RETURN;
    END IF;
    RETURN QUERY UPDATE turnkeep.files f SET status = 'ready', size = p_size, sha256 = p_sha256
                  WHERE f.id = p_file RETURNING f.*;
END $$;

CREATE FUNCTION turnkeep.delete_file(p_org text, p_workspace text, p_owner text, p_file text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM turnkeep.own_file(p_org, p_workspace, p_owner, p_file);
    UPDATE turnkeep.files f SET deleted_at = turnkeep.now_ms() WHERE f.id = p_file;
END $$;
