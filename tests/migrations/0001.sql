-- A small database as it stood at migration 0001, in words that both databases take: one org with a key and an agent;
-- Ann's conversation of one turn with a file and a tool call; Bob's turn, in the hands of a worker that is gone.
-- Frozen like the migration itself. `unhex` is SQLite's word; the test translates it for PostgreSQL.

INSERT INTO orgs (id, name, created_at)
VALUES ('org_00000000000070008000000000000001', 'Acme', 1750000000000);

INSERT INTO workspaces (id, org_id, name, is_default, model, monthly_message_limit, created_at)
VALUES ('ws_00000000000070008000000000000001', 'org_00000000000070008000000000000001', 'Default', '1', 'demo', 500,
        1750000000000);

INSERT INTO members (id, org_id, workspace_id, external_id, role, created_at)
VALUES ('user_00000000000070008000000000000001', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001', 'ann', 'member', 1750000000000),
       ('user_00000000000070008000000000000002', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001', 'bob', 'admin', 1750000000000);

INSERT INTO api_keys (id, org_id, name, secret_hash, requests_per_minute, allowed_tools, created_at)
VALUES ('key_00000000000070008000000000000001', 'org_00000000000070008000000000000001', 'backend',
        unhex('abababababababababababababababababababababababababababababababab'), 60, '["weather"]', 1750000000000);

INSERT INTO agents (id, org_id, workspace_id, spec, created_at, updated_at)
VALUES ('agent_00000000000070008000000000000001', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001',
        '{"name":"Clerk","instructions":"Be brief.","tools":["search_pages"]}', 1750000000000, 1750000000000);

INSERT INTO conversations (id, org_id, workspace_id, user_id, kind, agent_id, title, preview, metadata, message_count,
                           turn_count, next_ordinal, head_turn_id, created_at, updated_at)
VALUES ('conv_00000000000070008000000000000001', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001', 'user_00000000000070008000000000000001', 'chat',
        'agent_00000000000070008000000000000001', 'Weather in Bern?', 'Weather in Bern?', '{"tag":"é"}', 2, 1, 2,
        'turn_00000000000070008000000000000001', 1750000000000, 1750000005000),
       ('conv_00000000000070008000000000000002', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001', 'user_00000000000070008000000000000002', 'chat', NULL, 'Left running',
        'Left running', NULL, 1, 1, 2, NULL, 1750000010000, 1750000010000);

INSERT INTO turns (id, org_id, workspace_id, conversation_id, user_id, ordinal, active, status, attempt, last_seq,
                   seq_at_adoption, worker, lease_until, principal_ref, idempotency_key, request_hash, snapshot, source,
                   model, month, input_tokens, output_tokens, created_at, started_at, settled_at)
VALUES ('turn_00000000000070008000000000000001', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001', 'conv_00000000000070008000000000000001',
        'user_00000000000070008000000000000001', 1, '1', 'succeeded', 1, 5, 1, 'worker-1', NULL,
        'user_00000000000070008000000000000001', 'order-7', 'ff', '{}', 'api', 'demo', '2025-06', 10, 5, 1750000000000,
        1750000000000, 1750000005000),
       ('turn_00000000000070008000000000000002', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001', 'conv_00000000000070008000000000000002',
        'user_00000000000070008000000000000002', 1, '1', 'running', 1, 1, 1, 'worker-1', 1750000020000,
        'user_00000000000070008000000000000002', NULL, NULL, '{}', 'ui', NULL, '2025-06', 0, 0, 1750000010000,
        1750000010000, NULL);

INSERT INTO messages (turn_id, turn_sequence, id, org_id, conversation_id, role, internal, iteration, blocks, display,
                      attachments, usage, provider, created_at)
VALUES ('turn_00000000000070008000000000000001', 0, 'msg_00000000000070008000000000000001',
        'org_00000000000070008000000000000001', 'conv_00000000000070008000000000000001', 'user', '0', NULL,
        '[{"type":"text","text":"Weather in Bern?"}]', NULL,
        '[{"type":"file","file_id":"file_00000000000070008000000000000001","name":"notes.txt","mime_type":"text/plain","size":5}]',
        NULL, NULL, 1750000000000),
       ('turn_00000000000070008000000000000001', 1, 'msg_00000000000070008000000000000002',
        'org_00000000000070008000000000000001', 'conv_00000000000070008000000000000001', 'assistant', '1', 0,
        '[{"type":"tool_use","id":"call_00000000000070008000000000000001","name":"weather","input":{"city":"Bern"}}]',
        NULL, NULL, NULL, 'demo', 1750000001000),
       ('turn_00000000000070008000000000000001', 2, 'msg_00000000000070008000000000000003',
        'org_00000000000070008000000000000001', 'conv_00000000000070008000000000000001', 'user', '1', 0,
        '[{"type":"tool_result","call_id":"call_00000000000070008000000000000001","content":"rain"}]', NULL, NULL, NULL,
        NULL, 1750000002000),
       ('turn_00000000000070008000000000000001', 3, 'msg_00000000000070008000000000000004',
        'org_00000000000070008000000000000001', 'conv_00000000000070008000000000000001', 'assistant', '0', 1,
        '[{"type":"text","text":"Rain."}]',
        '[{"type":"step","id":"call_00000000000070008000000000000001","name":"weather","status":"succeeded","result":"rain"},{"type":"text","text":"Rain."}]',
        NULL, '{"input_tokens":10,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0}', 'demo',
        1750000005000),
       ('turn_00000000000070008000000000000002', 0, 'msg_00000000000070008000000000000005',
        'org_00000000000070008000000000000001', 'conv_00000000000070008000000000000002', 'user', '0', NULL,
        '[{"type":"text","text":"Left running"}]', NULL, NULL, NULL, NULL, 1750000010000);

INSERT INTO turn_events (turn_id, seq, org_id, type, payload)
VALUES ('turn_00000000000070008000000000000001', 1, 'org_00000000000070008000000000000001', 'turn',
        '{"type":"turn","turn_id":"turn_00000000000070008000000000000001","conversation_id":"conv_00000000000070008000000000000001","user_message_id":"msg_00000000000070008000000000000001","status":"running","attempt":1}'),
       ('turn_00000000000070008000000000000001', 2, 'org_00000000000070008000000000000001', 'tool_calls',
        '{"type":"tool_calls","iteration":0,"text":"","calls":[{"id":"call_00000000000070008000000000000001","name":"weather","args":{"city":"Bern"}}]}'),
       ('turn_00000000000070008000000000000001', 3, 'org_00000000000070008000000000000001', 'step',
        '{"type":"step","id":"call_00000000000070008000000000000001","name":"weather","status":"running"}'),
       ('turn_00000000000070008000000000000001', 4, 'org_00000000000070008000000000000001', 'step',
        '{"type":"step","id":"call_00000000000070008000000000000001","name":"weather","status":"succeeded","result":"rain"}'),
       ('turn_00000000000070008000000000000001', 5, 'org_00000000000070008000000000000001', 'result',
        '{"type":"result","message_id":"msg_00000000000070008000000000000004","message":"Rain.","content":[{"type":"step","id":"call_00000000000070008000000000000001","name":"weather","status":"succeeded","result":"rain"},{"type":"text","text":"Rain."}],"usage":{"input_tokens":10,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0}}'),
       ('turn_00000000000070008000000000000002', 1, 'org_00000000000070008000000000000001', 'turn',
        '{"type":"turn","turn_id":"turn_00000000000070008000000000000002","conversation_id":"conv_00000000000070008000000000000002","user_message_id":"msg_00000000000070008000000000000005","status":"running","attempt":1}');

INSERT INTO turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
VALUES ('turn_00000000000070008000000000000001', 1, 'org_00000000000070008000000000000001', 2, 'info', 'asked', NULL);

INSERT INTO files (id, org_id, workspace_id, user_id, conversation_id, message_id, name, name_key, mime_type, size,
                   sha256, storage_key, source, status, created_at)
VALUES ('file_00000000000070008000000000000001', 'org_00000000000070008000000000000001',
        'ws_00000000000070008000000000000001', 'user_00000000000070008000000000000001',
        'conv_00000000000070008000000000000001', 'msg_00000000000070008000000000000001', 'notes.txt', 'notes.txt',
        'text/plain', 5, '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824',
        'bag/ws_00000000000070008000000000000001/conv_00000000000070008000000000000001/file_00000000000070008000000000000001.txt',
        'user', 'ready', 1750000000000);

INSERT INTO usage (org_id, scope, scope_id, month, ui_messages, api_messages, input_tokens, output_tokens)
VALUES ('org_00000000000070008000000000000001', 'workspace', 'ws_00000000000070008000000000000001', '2025-06', 1, 1, 10, 5),
       ('org_00000000000070008000000000000001', 'user', 'user_00000000000070008000000000000001', '2025-06', 0, 1, 10, 5);
