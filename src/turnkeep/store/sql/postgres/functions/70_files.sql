-- The rows of the file bags.

-- Add a file under the first of these names that is free in its bag; no row if none is. The conversation's lock makes
-- that choice safe when many come at once. The same file id again answers with what is there.
CREATE FUNCTION turnkeep.add_file(
    p_org text, p_workspace text, p_user text, p_owner text, p_file text, p_conversation text, p_names text[],
    p_name_keys text[], p_mime_type text, p_size bigint, p_sha256 text, p_storage_key text, p_source text,
    p_turn text, p_is_saved boolean, p_crc32 bigint
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
            source, status, created_at, turn_id, saved_at, crc32)
    VALUES (p_file, p_org, p_workspace, p_user, p_conversation, p_names[v_place], p_name_keys[v_place], p_mime_type,
            p_size, p_sha256, p_storage_key, p_source, CASE WHEN p_sha256 IS NULL THEN 'pending' ELSE 'ready' END,
            turnkeep.now_ms(), p_turn, CASE WHEN p_is_saved THEN turnkeep.now_ms() END, p_crc32)
    ON CONFLICT (id) DO NOTHING;
    RETURN QUERY SELECT * FROM turnkeep.files f
                  WHERE f.id = p_file AND f.org_id = p_org AND f.storage_key = p_storage_key;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK007', 'This file id is taken.');
    END IF;
END $$;

-- A file that this owner may change, locked: that of the owner's conversation, or without one the owner's own. An admin
-- may change any of the workspace's Files.
CREATE FUNCTION turnkeep.own_file(p_org text, p_workspace text, p_owner text, p_is_admin boolean, p_file text)
RETURNS turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_file turnkeep.files;
BEGIN
    SELECT * INTO v_file FROM turnkeep.files f
     WHERE f.id = p_file AND f.org_id = p_org AND f.workspace_id = p_workspace AND f.deleted_at IS NULL
       AND (p_owner IS NULL OR f.conversation_id IS NOT NULL OR f.user_id = p_owner
            OR (p_is_admin AND f.saved_at IS NOT NULL))
       AND (f.conversation_id IS NULL OR EXISTS (
               SELECT 1 FROM turnkeep.conversations c
                WHERE c.id = f.conversation_id AND c.deleted_at IS NULL AND (p_owner IS NULL OR c.user_id = p_owner)))
       FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM turnkeep.refuse('TK001', 'No such file.');
    END IF;
    RETURN v_file;
END $$;

-- The place of the bytes and what was found in them, in one statement under the row's lock: nobody sees one without the
-- other, and of many who come at once one decides.
CREATE FUNCTION turnkeep.complete_file(p_org text, p_workspace text, p_owner text, p_file text, p_size bigint,
                                       p_sha256 text, p_mime_type text, p_storage_key text, p_crc32 bigint)
RETURNS SETOF turnkeep.files LANGUAGE plpgsql AS $$
DECLARE
    v_file turnkeep.files := turnkeep.own_file(p_org, p_workspace, p_owner, false, p_file);
BEGIN
    IF v_file.status = 'ready' THEN
        IF v_file.sha256 IS DISTINCT FROM p_sha256 THEN
            PERFORM turnkeep.refuse('TK007', 'This file is complete already, with other bytes.');
        END IF;
        RETURN NEXT v_file;
        RETURN;
    END IF;
    RETURN QUERY UPDATE turnkeep.files f
                    SET status = 'ready', size = p_size, sha256 = p_sha256,
                        mime_type = coalesce(p_mime_type, f.mime_type),
                        storage_key = coalesce(p_storage_key, f.storage_key), crc32 = p_crc32
                  WHERE f.id = p_file AND f.status = 'pending' RETURNING f.*;
END $$;

CREATE FUNCTION turnkeep.delete_file(p_org text, p_workspace text, p_owner text, p_is_admin boolean, p_file text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM turnkeep.own_file(p_org, p_workspace, p_owner, p_is_admin, p_file);
    UPDATE turnkeep.files f SET deleted_at = turnkeep.now_ms() WHERE f.id = p_file;
END $$;

-- Spend an upload token for these files, and say whose bag they join; no row if it cannot be spent. Conversation and turn
-- stay locked, so that what follows in this transaction happens under the fence. The same files again are welcome: the
-- answer was lost.
CREATE FUNCTION turnkeep.begin_write_back(p_token bytea, p_files text[])
RETURNS TABLE (turn_id text, org_id text, workspace_id text, conversation_id text, user_id text) LANGUAGE plpgsql AS $$
DECLARE
    v_token        turnkeep.one_time_tokens;
    v_turn         turnkeep.turns;
    v_conversation turnkeep.conversations;
BEGIN
    SELECT * INTO v_conversation FROM turnkeep.conversations c
     WHERE c.id = (SELECT t.conversation_id FROM turnkeep.one_time_tokens o JOIN turnkeep.turns t ON t.id = o.turn_id
                    WHERE o.token_hash = p_token)
       FOR UPDATE;
    SELECT t.* INTO v_turn FROM turnkeep.turns t
     WHERE t.id = (SELECT o.turn_id FROM turnkeep.one_time_tokens o WHERE o.token_hash = p_token)
       FOR UPDATE;
    SELECT * INTO v_token FROM turnkeep.one_time_tokens o
     WHERE o.token_hash = p_token AND o.purpose = 'upload' FOR UPDATE;
    IF v_token.used_at IS NOT NULL THEN
        IF (SELECT count(*) FROM turnkeep.files f
             WHERE f.id = ANY (p_files) AND f.turn_id = v_turn.id) <> array_length(p_files, 1) THEN
            RETURN;
        END IF;
    ELSIF v_token.token_hash IS NULL OR v_token.expires_at <= turnkeep.now_ms() OR v_turn.status <> 'running'
          OR v_turn.attempt <> v_token.attempt OR v_conversation.deleted_at IS NOT NULL THEN
        RETURN;
    ELSE
        UPDATE turnkeep.one_time_tokens o SET used_at = turnkeep.now_ms() WHERE o.token_hash = p_token;
        UPDATE turnkeep.turns t SET files_written = t.files_written + coalesce(array_length(p_files, 1), 0)
         WHERE t.id = v_turn.id;
    END IF;
    RETURN QUERY SELECT v_turn.id, v_turn.org_id, v_turn.workspace_id, v_turn.conversation_id, v_conversation.user_id;
END $$;

-- Erase uploads that nobody completed. What an import named is no upload: its bytes may still come.
CREATE FUNCTION turnkeep.drop_unfinished(p_before bigint, p_limit integer)
RETURNS TABLE (id text, storage_key text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    DELETE FROM turnkeep.files f
     WHERE f.id IN (SELECT x.id FROM turnkeep.files x
                     WHERE x.status = 'pending' AND x.created_at < p_before AND x.storage_key NOT LIKE 'imported/%'
                     ORDER BY x.created_at, x.id LIMIT p_limit FOR UPDATE SKIP LOCKED)
    RETURNING f.id, f.storage_key;
END $$;
