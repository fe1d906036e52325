-- What the outside must hear of: written in the transaction that made it true, and erased once it is delivered. An entry is
-- leased to the worker that delivers it: no worker takes it before `not_before`.
-- Entries are delivered within seconds, so the table is small and needs no index but its key.

CREATE TABLE outbox (
    id              text PRIMARY KEY,
    org_id          text NOT NULL,
    workspace_id    text NOT NULL,
    user_id         text,
    type            text NOT NULL,  -- turn.succeeded, turn.failed, turn.cancelled
    conversation_id text,
    subject_id      text NOT NULL,  -- the turn
    created_at      integer NOT NULL,
    not_before      integer NOT NULL,
    attempts        integer NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
