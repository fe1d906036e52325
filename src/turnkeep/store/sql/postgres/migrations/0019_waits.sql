-- Turns that wait for a person or for the caller. Such a turn is a running one that no worker holds.

-- `waiting` are the calls for which the turn waits or has waited (`model.waits.Wait`). `waiting_until` is when it goes on
-- without an answer, while it waits. `steers` counts the messages that were sent to steer the turn; `steers_turn_id` is
-- the turn which a queued turn steers.
ALTER TABLE turnkeep.turns ADD COLUMN waiting text;
ALTER TABLE turnkeep.turns ADD COLUMN waiting_until bigint;
ALTER TABLE turnkeep.turns ADD COLUMN steers integer NOT NULL DEFAULT 0;
ALTER TABLE turnkeep.turns ADD COLUMN steers_turn_id text COLLATE "C";
CREATE INDEX CONCURRENTLY turns_deadlines ON turnkeep.turns (waiting_until) WHERE waiting_until IS NOT NULL;
-- What every sweep looks through: turns that run, without those that wait.
CREATE INDEX CONCURRENTLY turns_held ON turnkeep.turns (conversation_id) WHERE status = 'running' AND waiting_until IS NULL;

-- Tools whose calls need no decision any more in this conversation.
ALTER TABLE turnkeep.conversations ADD COLUMN trusted_tools text;

-- Whoever asks for a stop ends the wait: the turn can be adopted at once, and is settled.
CREATE FUNCTION turnkeep.end_wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.waiting_until := NULL;
    NEW.lease_until := -1;
    RETURN NEW;
END $$;
CREATE TRIGGER turns_are_stopped BEFORE UPDATE OF cancel_requested_at ON turnkeep.turns
    FOR EACH ROW WHEN (NEW.cancel_requested_at IS NOT NULL AND NEW.waiting_until IS NOT NULL) EXECUTE FUNCTION turnkeep.end_wait();

REVOKE ALL ON FUNCTION turnkeep.end_wait FROM PUBLIC;
