-- Rights: the engine works with everything; the client reads eight tables, through its own functions or by a query, and
-- can do nothing else. PUBLIC has no right.

REVOKE ALL ON SCHEMA turnkeep FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA turnkeep FROM PUBLIC, turnkeep_client;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA turnkeep FROM PUBLIC, turnkeep_client;

GRANT USAGE ON SCHEMA turnkeep TO turnkeep_engine, turnkeep_client;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA turnkeep TO turnkeep_engine;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA turnkeep TO turnkeep_engine;

GRANT SELECT ON turnkeep.conversations, turnkeep.messages, turnkeep.files, turnkeep.agents, turnkeep.pages,
      turnkeep.tables TO turnkeep_client;
GRANT SELECT (table_id, number, org_id, cells, created_at, updated_at) ON turnkeep.table_rows TO turnkeep_client;
-- Not the idempotency keys, nor who holds the lease: only what a turn shows.
GRANT SELECT (id, org_id, workspace_id, conversation_id, user_id, parent_turn_id, ordinal, active, status, attempt,
              failures, last_seq, cancel_requested_at, background, source, model, snapshot, input_tokens, output_tokens,
              cache_read_tokens, cache_write_tokens, month, error, metadata, created_at, started_at, settled_at,
              report)
      ON turnkeep.turns TO turnkeep_client;
GRANT EXECUTE ON FUNCTION
      turnkeep.become, turnkeep.my_conversation, turnkeep.my_conversation_with_queue, turnkeep.my_conversations,
      turnkeep.my_found, turnkeep.my_messages,
      turnkeep.my_transcript, turnkeep.siblings, turnkeep.my_turn, turnkeep.my_file, turnkeep.my_files,
      turnkeep.my_saved_files, turnkeep.my_agent, turnkeep.my_agents, turnkeep.my_reached_agents, turnkeep.my_page,
      turnkeep.my_pages,
      turnkeep.my_page_texts, turnkeep.my_table, turnkeep.my_tables, turnkeep.my_table_rows, turnkeep.my_found_rows
   TO turnkeep_client;
