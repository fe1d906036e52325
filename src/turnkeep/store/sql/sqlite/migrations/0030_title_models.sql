-- The model that writes titles of conversations, chosen for each workspace. NULL: that of the server. 'off': none.

ALTER TABLE workspaces ADD COLUMN title_model text;
