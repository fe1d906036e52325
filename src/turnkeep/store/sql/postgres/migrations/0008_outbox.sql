-- What the outside must hear of: written in the transaction that made it true, and erased once it is delivered. An entry is
-- leased to the worker that delivers it: no worker takes it before `not_before`.
-- Entries are delivered within seconds, so the table is small and needs no index but its key.

CREATE TABLE turnkeep.outbox (
    id              text COLLATE "C" PRIMARY KEY,
    org_id          text COLLATE "C" NOT NULL,
    workspace_id    text COLLATE "C" NOT NULL,
    user_id         text COLLATE "C",
    type            text NOT NULL,  -- turn.succeeded, turn.failed, turn.cancelled
    conversation_id text COLLATE "C",
    subject_id      text COLLATE "C" NOT NULL,  -- the turn
    created_at      bigint NOT NULL,
    not_before      bigint NOT NULL,
    attempts        integer NOT NULL DEFAULT 0
);
