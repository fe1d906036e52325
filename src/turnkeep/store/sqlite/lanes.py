"""Lanes: where a verb's work runs.

Writes go to the one writer, reads to the readers, and reads for a principal to those behind the boundary.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from turnkeep.model.principals import Principal
from turnkeep.store.sqlite.jobs import Job
from turnkeep.store.sqlite.readers import Lane
from turnkeep.store.sqlite.session import Session
from turnkeep.store.sqlite.writer import Writer

T = TypeVar("T")


class Lanes:
    """What every part of the store is built on. The parts below it hold the verbs."""

    def __init__(self, writer: Writer, engine: Lane, client: Lane) -> None:
        self._writer = writer
        self._engine = engine
        self._client = client

    def _write(self, job: Callable[..., T], *values: Any) -> Awaitable[T]:
        """Run it in a transaction; done means committed and flushed."""
        return self._writer.ask(lambda session: job(session, *values))

    def _read(self, job: Callable[..., T], *values: Any) -> Awaitable[T]:
        """Run it on the engine's path, which sees everything."""
        return self._engine.ask(lambda session: job(session, *values))

    def _see(self, principal: Principal, job: Callable[..., T], *values: Any) -> Awaitable[T]:
        """Run it on the client path, as this principal."""
        return self._client.ask(as_principal(principal, job, *values))


def as_principal(principal: Principal, job: Callable[..., T], *values: Any) -> Job[T]:
    """The job as that principal, and nobody again after it."""

    def seen(session: Session) -> T:
        identity = session.identity
        identity.set(principal)
        try:
            return job(session, *values)
        finally:
            identity.unset()

    return seen
