-- A turn that waited in the queue is watched anew from the moment it starts, for as long as readers of it are missed. How
-- long that is its claim says; turns that waited before had half a minute.

ALTER TABLE turnkeep.turns ADD COLUMN watched_ms bigint NOT NULL DEFAULT 30000;
