-- What OpenAI's clients give and take: the purpose of a file, as it was given; and blocks of a message that were deleted
-- since. Those are not sent to models any more: a JSON list of their places, or "all" for a message that readers do not see
-- any more either.

ALTER TABLE files ADD COLUMN purpose text;
ALTER TABLE messages ADD COLUMN removed text;
