-- The model that writes titles of conversations, chosen for each workspace.

ALTER TABLE turnkeep.workspaces ADD COLUMN title_model text;
COMMENT ON COLUMN turnkeep.workspaces.title_model IS 'NULL: the model of the server writes titles; off: none does';
