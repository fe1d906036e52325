-- A zip says the CRC-32 of each file. It is computed once, when the bytes come, and not with every download. Files that
-- came before have none.

ALTER TABLE turnkeep.files ADD COLUMN crc32 bigint;
