-- The turns of a workspace in one month, newest first: the list behind its usage.

CREATE INDEX turns_of_month ON turns (workspace_id, month, id);
