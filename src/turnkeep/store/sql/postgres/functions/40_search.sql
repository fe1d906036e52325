-- A page of conversations with an entry that matches (of the visible chain, or the title's), newest change first, behind
-- (p_updated_at, p_id). The owner is NULL for every user.
--
-- The planner does not know how many entries a word has. If there are few, their conversations are looked up. If there are
-- many, the conversations are read in the order of the list, and their entries are looked up until the page is full. A word
-- that is frequent elsewhere may be rare in a workspace; its entries are then looked at, as a workspace may be large.
CREATE FUNCTION turnkeep.found_conversations(p_org text, p_workspace text, p_owner text, p_query tsquery,
                                             p_updated_at bigint, p_id text, p_limit integer)
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
         WHERE c.org_id = p_org AND c.deleted_at IS NULL AND c.kind <> 'run'
           AND (c.updated_at, c.id) < (p_updated_at, p_id COLLATE "C") AND turnkeep.is_found(c.id, p_query)
         ORDER BY c.updated_at DESC, c.id DESC LIMIT p_limit;
    ELSIF p_owner IS NULL THEN
        RETURN QUERY
        SELECT c.id FROM turnkeep.conversations c
         WHERE c.workspace_id = p_workspace AND c.org_id = p_org AND c.deleted_at IS NULL AND c.kind <> 'run'
           AND c.updated_period <= p_updated_at / 300000 AND (c.updated_at, c.id) < (p_updated_at, p_id COLLATE "C")
           AND turnkeep.is_found(c.id, p_query)
         ORDER BY c.updated_period DESC, c.updated_at DESC, c.id DESC LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT c.id FROM turnkeep.conversations c
         WHERE c.workspace_id = p_workspace AND c.user_id = p_owner AND c.org_id = p_org AND c.deleted_at IS NULL
           AND c.kind <> 'run'
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
