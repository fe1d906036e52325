"""The clock of a PostgreSQL database, set by hand.

Every time that the store writes or compares comes from the function `turnkeep.now_ms`, so a test that replaces it owns
the time of its database.
"""

import asyncpg

_REPLACE = """
CREATE TABLE IF NOT EXISTS public.turnkeep_test_clock (now_ms bigint NOT NULL);
GRANT SELECT ON public.turnkeep_test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION turnkeep.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT now_ms FROM public.turnkeep_test_clock $$;
"""


async def set_test_clock(database: "str | asyncpg.Connection[asyncpg.Record]", now_ms: int) -> None:
    """From now on the database (its address, or a superuser's connection to it) says that it is `now_ms`."""
    if isinstance(database, str):
        connection = await asyncpg.connect(database)
        try:
            await set_test_clock(connection, now_ms)
        finally:
            await connection.close()
        return
    async with database.transaction():
        if not await database.fetchval("SELECT to_regclass('public.turnkeep_test_clock')"):
            await database.execute(_REPLACE)
        await database.execute("DELETE FROM public.turnkeep_test_clock")
        await database.execute("INSERT INTO public.turnkeep_test_clock VALUES ($1)", now_ms)
