-- Decisions of a user about calls of others. An erasure of this user looks for them.

CREATE INDEX turns_that_waited ON turns (workspace_id, id) WHERE waiting IS NOT NULL;
