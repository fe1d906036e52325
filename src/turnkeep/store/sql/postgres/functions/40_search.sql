-- A page of conversations with an entry that matches (of the visible chain, or the title's), newest change first, behind
-- (p_updated_at, p_id). The owner is NULL for every user.
--
-- The planner does not know how many entries a word has. If there are few, their conversations are looked up. If there are
-- many, the conversations are read in the order of the list, and their entries are looked up until the page is full. A word
-- that is frequent elsewhere may be rare in a workspace; its entries are then looked at, as a workspace may be large.
-- `p_only` is a filter (`commands.ConversationFilter`), or NULL.
CREATE FUNCTION turnkeep.found_conversations(p_org text, p_workspace text, p_owner text, p_query tsquery,
                                             p_updated_at bigint, p_id text, p_limit integer, p_only json)
RETURNS TABLE (id text) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_most  CONSTANT integer := 2000;
    v_count integer;
    v_found text[];
BEGIN
    SELECT count(*), array_agg(e.conversation_id) FILTER (WHERE e.workspace_id = p_workspace
                                                            AND (p_owner IS NULL OR e.user_id = p_owner))
      INTO v_count, v_found
      FROM (SELECT x.conversation_id, x.workspace_id, x.user_id FROM turnkeep.search_entries x
             WHERE x.tokens @@ p_query LIMIT v_most + 1) e;
    IF v_count > v_most AND p_owner IS NULL THEN
        SELECT count(*), array_agg(e.conversation_id) INTO v_count, v_found
          FROM (SELECT x.conversation_id FROM turnkeep.search_entries x
                 WHERE x.tokens @@ p_query AND x.workspace_id = p_workspace LIMIT v_most + 1) e;
    END IF;
    IF v_count <= v_most THEN
        RETURN QUERY
        SELECT c.id
          FROM (SELECT DISTINCT f AS id FROM unnest(v_found) f) f
         CROSS JOIN LATERAL (SELECT x.* FROM turnkeep.conversations x WHERE x.id = f.id OFFSET 0) c
         WHERE c.org_id = p_org AND c.deleted_at IS NULL AND c.is_listed
           AND (c.updated_at, c.id) < (p_updated_at, p_id COLLATE "C")
           AND CASE WHEN p_only IS NULL THEN c.kind <> 'run'
                    ELSE turnkeep.is_wanted(c.kind, c.agent_id, c.external_id, c.updated_at, c.is_pinned, c.folder, p_only) END
           AND turnkeep.is_found(c.id, p_query)
         ORDER BY c.updated_at DESC, c.id DESC LIMIT p_limit;
    ELSIF p_only IS NOT NULL THEN
        RETURN QUERY
        SELECT l.id FROM turnkeep.listed_conversations(p_org, p_workspace, p_owner, p_query, p_updated_at, p_id, p_limit,
                                                       p_only) l;
    ELSIF p_owner IS NULL THEN
        RETURN QUERY
        SELECT c.id FROM turnkeep.conversations c
         WHERE c.workspace_id = p_workspace AND c.org_id = p_org AND c.deleted_at IS NULL AND c.kind <> 'run' AND c.is_listed
           AND c.updated_period <= p_updated_at / 300000 AND (c.updated_at, c.id) < (p_updated_at, p_id COLLATE "C")
           AND turnkeep.is_found(c.id, p_query)
         ORDER BY c.updated_period DESC, c.updated_at DESC, c.id DESC LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT c.id FROM turnkeep.conversations c
         WHERE c.workspace_id = p_workspace AND c.user_id = p_owner AND c.org_id = p_org AND c.deleted_at IS NULL
           AND c.kind <> 'run' AND c.is_listed
           AND c.updated_period <= p_updated_at / 300000 AND (c.updated_at, c.id) < (p_updated_at, p_id COLLATE "C")
           AND turnkeep.is_found(c.id, p_query)
         ORDER BY c.updated_period DESC, c.updated_at DESC, c.id DESC LIMIT p_limit;
    END IF;
END $$;

-- Whether an entry of this conversation matches: its title, or a message of the visible chain.
CREATE FUNCTION turnkeep.is_found(p_conversation text, p_query tsquery) RETURNS boolean LANGUAGE plpgsql STABLE COST 1000 AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM turnkeep.search_entries e
                    WHERE e.conversation_id = p_conversation AND e.tokens @@ p_query
                      AND (e.turn_sequence = -1
                           OR EXISTS (SELECT 1 FROM turnkeep.turns t WHERE t.id = e.turn_id AND t.active OFFSET 0)));
END $$;

-- Whether a filter leaves a conversation. Runs are left out unless it asks for them.
CREATE FUNCTION turnkeep.is_wanted(p_kind text, p_agent text, p_external_id text, p_updated_at bigint, p_is_pinned boolean,
                                   p_folder text, p_only json)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_only ->> 'kind' IS NULL THEN p_kind <> 'run' ELSE p_kind = p_only ->> 'kind' END
       AND (p_only ->> 'agent_id' IS NULL OR p_agent = p_only ->> 'agent_id')
       AND (p_only ->> 'external_id' IS NULL OR p_external_id = p_only ->> 'external_id')
       AND p_updated_at >= coalesce((p_only ->> 'since')::bigint, 0)
       AND (p_only ->> 'is_pinned' IS NULL OR p_is_pinned = (p_only ->> 'is_pinned')::boolean)
       AND (p_only ->> 'folder' IS NULL OR p_folder = p_only ->> 'folder')
       AND (p_only ->> 'is_filed' IS NULL OR (p_folder IS NOT NULL) = (p_only ->> 'is_filed')::boolean)
$$;

-- A page of the conversations that a filter leaves, newest change first, behind (p_updated_at, p_id); with `p_query`, those
-- of them that have a matching entry. The statement names only what the filter has, and is planned for its values: so it
-- reads from the index of the agent or the kind where that is the shorter way. Conversations of one external id are few, at
-- most one of each user, and are sorted.
CREATE FUNCTION turnkeep.listed_conversations(p_org text, p_workspace text, p_owner text, p_query tsquery,
                                              p_updated_at bigint, p_id text, p_limit integer, p_only json)
RETURNS TABLE (id text) LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_from  text := 'turnkeep.conversations';
    v_where text := 'c.workspace_id = $1 AND c.org_id = $2 AND c.deleted_at IS NULL AND c.is_listed'
        ' AND c.updated_period <= $3 / 300000'
        ' AND (c.updated_at, c.id) < ($3, $4 COLLATE "C")';
BEGIN
    IF p_only ->> 'external_id' IS NOT NULL THEN
        v_from := '(SELECT * FROM turnkeep.conversations x WHERE x.workspace_id = $1 AND x.external_id = $9'
                  ' AND x.deleted_at IS NULL OFFSET 0)';
    END IF;
    v_where := v_where || CASE p_only ->> 'kind'
        WHEN 'run' THEN $k$ AND c.kind <> 'chat' AND c.kind = 'run'$k$
        WHEN 'sandbox' THEN $k$ AND c.kind <> 'chat' AND c.kind = 'sandbox'$k$
        WHEN 'chat' THEN $k$ AND c.kind <> 'run' AND c.kind = 'chat'$k$
        ELSE $k$ AND c.kind <> 'run'$k$ END;
    IF p_owner IS NOT NULL THEN
        v_where := v_where || ' AND c.user_id = $5';
    END IF;
    IF p_only ->> 'agent_id' IS NOT NULL THEN
        v_where := v_where || ' AND c.agent_id = $6';
    END IF;
    IF p_only ->> 'since' IS NOT NULL THEN
        v_where := v_where || ' AND c.updated_period >= $7 / 300000 AND c.updated_at >= $7';
    END IF;
    IF p_only ->> 'is_pinned' IS NOT NULL THEN
        v_where := v_where || CASE WHEN (p_only ->> 'is_pinned')::boolean THEN ' AND c.is_pinned' ELSE ' AND NOT c.is_pinned' END;
    END IF;
    IF p_only ->> 'folder' IS NOT NULL THEN
        v_where := v_where || ' AND c.folder = $11';
    END IF;
    IF p_only ->> 'is_filed' IS NOT NULL THEN
        v_where := v_where || CASE WHEN (p_only ->> 'is_filed')::boolean THEN ' AND c.folder IS NOT NULL' ELSE ' AND c.folder IS NULL' END;
    END IF;
    IF p_query IS NOT NULL THEN
        v_where := v_where || ' AND turnkeep.is_found(c.id, $8)';
    END IF;
    RETURN QUERY EXECUTE 'SELECT c.id FROM ' || v_from || ' c WHERE ' || v_where ||
        ' ORDER BY c.updated_period DESC, c.updated_at DESC, c.id DESC LIMIT $10'
    USING p_workspace, p_org, p_updated_at, p_id, p_owner, p_only ->> 'agent_id', (p_only ->> 'since')::bigint, p_query,
          p_only ->> 'external_id', p_limit, p_only ->> 'folder';
END $$;
