-- On PostgreSQL, messages and events are divided by time. Here nothing changes: a file has no partitions.

SELECT 1;
