-- Who a user is and what they may spend: a name, whether they are disabled, and monthly limits of their own. What a key
-- may reach (`scopes`), and the keys that it counts with (`ancestors`: the key that made it, the maker of that one, and so
-- on). Costs, for the limit of a user: of a turn if its model has a price, and of each scope and month.

ALTER TABLE members ADD COLUMN name text;
ALTER TABLE members ADD COLUMN is_disabled integer NOT NULL DEFAULT 0;
ALTER TABLE members ADD COLUMN monthly_message_limit integer;
ALTER TABLE members ADD COLUMN monthly_token_limit integer;
ALTER TABLE members ADD COLUMN monthly_cost_limit real;
ALTER TABLE api_keys ADD COLUMN scopes text;
ALTER TABLE api_keys ADD COLUMN ancestors text;
ALTER TABLE turns ADD COLUMN cost real;
ALTER TABLE usage ADD COLUMN cost real NOT NULL DEFAULT 0;
