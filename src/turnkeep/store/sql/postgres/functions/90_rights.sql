-- Rights on the functions of this release: the engine calls all of them, the client those that take an identity, and PUBLIC
-- none.

REVOKE ALL ON SCHEMA {functions} FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {functions} FROM PUBLIC, turnkeep_client;
GRANT USAGE ON SCHEMA {functions} TO turnkeep_engine, turnkeep_client;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {functions} TO turnkeep_engine;
GRANT EXECUTE ON FUNCTION
      turnkeep.become, turnkeep.my_conversation, turnkeep.my_conversation_with_queue, turnkeep.my_conversations,
      turnkeep.my_found, turnkeep.my_folders, turnkeep.my_messages,
      turnkeep.my_transcript, turnkeep.my_questions, turnkeep.siblings, turnkeep.my_rows_of_turns, turnkeep.my_turn, turnkeep.my_file, turnkeep.my_files,
      turnkeep.my_saved_files, turnkeep.my_loose_files, turnkeep.my_agent, turnkeep.my_agents, turnkeep.my_reached_agents, turnkeep.my_page,
      turnkeep.my_pages,
      turnkeep.my_page_texts, turnkeep.my_table, turnkeep.my_tables, turnkeep.my_table_rows, turnkeep.my_found_rows
   TO turnkeep_client;
