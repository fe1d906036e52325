"""Roles: who may become what in the database, and the check that refuses to start when that is wrong.

`turnkeep_engine` and `turnkeep_client` are groups without a login, shared by all databases of a server. The database's
own user is a member of the first. The client path logs in as a role of its own for each database,
`turnkeep_client_<database>`, a member of the second.

Decision: docs/decisions/0106
"""

import base64
import hashlib
import hmac
import secrets

import asyncpg

from turnkeep.errors import BoundaryBroken, Defect
from turnkeep.store.postgres.io.pool import Pool
from turnkeep.store.postgres.io.statements import statements

ENGINE = "turnkeep_engine"
CLIENT = "turnkeep_client"
_NAME_BYTES = 63
_SCRAM_ROUNDS = 4096


def client_login(database: str) -> str:
    """The client's login of a database. For a long name it ends with a hash instead, since PostgreSQL cuts names."""
    name = f"{CLIENT}_{database}"
    if len(name.encode()) <= _NAME_BYTES:
        return name
    return f"{CLIENT}_{hashlib.sha256(database.encode()).hexdigest()[:32]}"


async def ensure_groups(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Make the two group roles and let the present user work as the engine. Does nothing where that is so already."""
    user, is_engine = await connection.fetchrow(  # type: ignore[misc]
        "SELECT quote_ident(current_user), EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = $1 "
        "AND pg_has_role(current_user, r.oid, 'USAGE'))",
        ENGINE,
    )
    wanted = [f"CREATE ROLE {group} NOLOGIN" for group in (ENGINE, CLIENT) if not await _exists(connection, group)]
    if not is_engine:
        wanted.append(f"GRANT {ENGINE} TO {user}")
    await _run(connection, wanted)


async def ensure_login(
    connection: "asyncpg.Connection[asyncpg.Record]", login: str, password: str | None, *, renew: bool = False
) -> None:
    """Make the client's login; with `renew` give an old one this password. Never takes a right away from anyone."""
    name = _identifier(login)
    said = "" if password is None else f" PASSWORD '{scram_verifier(password)}'"
    wanted = []
    if not await _exists(connection, login):
        wanted = [
            f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS{said}",
            f"GRANT {CLIENT} TO {name}",
        ]
    elif renew and said:
        wanted = [f"ALTER ROLE {name}{said}"]
    await _run(connection, wanted)


async def check_boundary(engine: Pool, client: Pool) -> None:
    """Raise BoundaryBroken if the client path could see or do more than it may."""
    queries = statements()
    login, _ = (await client.fetch(queries["who_am_i"]))[0]
    problems = [row[0] for row in await engine.fetch(queries["boundary_problems"], login)]
    if problems:
        raise BoundaryBroken(
            "The path that serves users is not closed, so the store does not open: " + "; ".join(problems) + "."
        )


def scram_verifier(password: str) -> str:
    """What PostgreSQL keeps of a password (RFC 5803), made here so that the password itself is in no server's log."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ROUNDS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    served = hmac.digest(salted, b"Server Key", "sha256")
    salt64, stored64, served64 = (base64.b64encode(part).decode() for part in (salt, stored, served))
    return f"SCRAM-SHA-256${_SCRAM_ROUNDS}:{salt64}${stored64}:{served64}"


async def _run(connection: "asyncpg.Connection[asyncpg.Record]", wanted: list[str]) -> None:
    for statement in wanted:
        try:
            await connection.execute(statement)
        except asyncpg.InsufficientPrivilegeError as exc:
            shown = "; ".join(each.partition(" PASSWORD ")[0] for each in wanted)
            raise Defect(
                "The database's user may not make the roles that Turnkeep needs. Let an administrator run: "
                f"{shown}; with the client's password where it is to have one, or pass the address of a client "
                "login of your own."
            ) from exc


async def _exists(connection: "asyncpg.Connection[asyncpg.Record]", role: str) -> bool:
    return bool(await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role))


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
