-- Whole conversations that come from elsewhere.

-- name: insert_imported_turn
INSERT INTO turns ({imported_turn_columns}) VALUES ({imported_turn_values});

-- name: insert_imported_message
INSERT INTO messages ({message_columns}, org_id) VALUES ({message_values}, :org_id);

-- name: insert_imported_event
INSERT INTO turn_events (turn_id, seq, org_id, type, payload) VALUES (:turn_id, :seq, :org_id, :type, :payload);

-- name: insert_imported_log
INSERT INTO turn_logs (turn_id, n, org_id, after_seq, level, message, ts)
VALUES (:turn_id, :n, :org_id, :after_seq, :level, :message, :ts);
