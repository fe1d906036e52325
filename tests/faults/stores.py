"""Opening a store by its address, as a worker and as the test do it."""

from turnkeep.store.ports import Store

CLIENT_PASSWORD = "client-of-the-fault-tests"


async def open_store(url: str, *, retry_seconds: float = 10.0, is_prepared: bool = True) -> Store:
    """`sqlite:///path`, which only one process may have open, or `postgresql://…`, where statements stay prepared."""
    if url.startswith("sqlite:///"):
        from turnkeep.store.sqlite import SqliteStore

        return await SqliteStore.open(url.removeprefix("sqlite:///"))
    from turnkeep.store.postgres import PostgresStore

    return await PostgresStore.open(
        url, client_password=CLIENT_PASSWORD, retry_seconds=retry_seconds, prepared_statements=is_prepared
    )
