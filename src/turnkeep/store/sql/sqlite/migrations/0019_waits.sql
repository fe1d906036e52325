-- Turns that wait for a person or for the caller. Such a turn is a running one that no worker holds.

-- `waiting` are the calls for which the turn waits or has waited (`model.waits.Wait`). `waiting_until` is when it goes on
-- without an answer, while it waits. `steers` counts the messages that were sent to steer the turn; `steers_turn_id` is
-- the turn which a queued turn steers.
ALTER TABLE turns ADD COLUMN waiting text;
ALTER TABLE turns ADD COLUMN waiting_until integer;
ALTER TABLE turns ADD COLUMN steers integer NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN steers_turn_id text;
CREATE INDEX turns_deadlines ON turns (waiting_until) WHERE waiting_until IS NOT NULL;
-- What every sweep looks through: turns that run, without those that wait.
CREATE INDEX turns_held ON turns (conversation_id) WHERE status = 'running' AND waiting_until IS NULL;

-- Tools whose calls need no decision any more in this conversation.
ALTER TABLE conversations ADD COLUMN trusted_tools text;

-- Whoever asks for a stop ends the wait: the turn can be adopted at once, and is settled.
CREATE TRIGGER turns_are_stopped AFTER UPDATE OF cancel_requested_at ON turns
    WHEN new.cancel_requested_at IS NOT NULL AND new.waiting_until IS NOT NULL BEGIN
    UPDATE turns SET waiting_until = NULL, lease_until = -1 WHERE id = new.id;
END;
