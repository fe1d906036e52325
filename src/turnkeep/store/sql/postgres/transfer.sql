-- Whole conversations that come from elsewhere. Each statement takes many rows, as one JSON document.

-- name: import_turns
INSERT INTO turnkeep.turns ({imported_turn_columns})
SELECT {n.imported_turn_columns} FROM json_populate_recordset(NULL::turnkeep.turns, $1::json) n

-- name: import_messages
INSERT INTO turnkeep.messages ({message_columns}, org_id)
SELECT {n.message_columns}, n.org_id FROM json_populate_recordset(NULL::turnkeep.messages, $1::json) n

-- name: import_events
INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload)
SELECT n.turn_id, n.seq, n.org_id, n.type, n.payload FROM json_populate_recordset(NULL::turnkeep.turn_events, $1::json) n

-- name: import_logs
INSERT INTO turnkeep.turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
SELECT n.turn_id, n.n, n.org_id, n.after_seq, n.level, n.message, n.ts
  FROM json_populate_recordset(NULL::turnkeep.turn_logs, $1::json) n
