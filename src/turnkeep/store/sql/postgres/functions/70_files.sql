-- The rows of the file bags.

-- Whether this owner may change a file: that of the owner's conversation, or without one the owner's own. An admin may
-- change any of the workspace's Files. NULL as owner means every user. Plain SQL, so that it becomes part of the query.
CREATE FUNCTION turnkeep.owns_file(p_file turnkeep.files, p_org text, p_workspace text, p_owner text, p_is_admin boolean)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_file.org_id = p_org AND p_file.workspace_id = p_workspace AND p_file.deleted_at IS NULL
       AND CASE WHEN p_file.conversation_id IS NULL
                THEN p_owner IS NULL OR p_file.user_id = p_owner OR (p_is_admin AND p_file.saved_at IS NOT NULL)
                ELSE EXISTS (SELECT 1 FROM turnkeep.conversations c
                              WHERE c.id = p_file.conversation_id AND c.deleted_at IS NULL
                                AND (p_owner IS NULL OR c.user_id = p_owner)) END
$$;
