"""The check-up: every part of an installation, whether it works, and what to do if it does not.

It works while the server is down: what can be asked without it (database, bucket, Redis, runner) is asked directly. It
changes nothing, but for a small object that it writes to the bucket and removes again.
"""

import os
from collections.abc import Mapping

from turnkeep.cli.findings import Finding, found
from turnkeep.cli.local_checks import LocalChecks
from turnkeep.cli.server_checks import ServerChecks
from turnkeep.config import Settings
from turnkeep_client.discovery import ServerAddress

_DOWN = "is compared with the server's, which is down"


async def check_up(settings: Settings, place: ServerAddress, *, is_remote: bool) -> list[Finding]:
    """All findings, in the order in which one would look. Of a remote server only its own answers are known."""
    server = ServerChecks(place)
    findings = [await found("server", server.is_ready)]
    is_up = findings[0].state == "ok"
    if is_up:
        findings.append(await found("key", server.knows_key))
    if not is_remote:
        local = LocalChecks(settings)
        findings += [
            await found("database", local.database),
            await found("roles", local.roles),
            await found("bucket", local.bucket),
            await found("files", server.files if is_up else local.files),
            await found("redis", local.redis),
            await found("runner", local.runner),
        ]
    findings.append(await found("models", server.models) if is_up else _models_of(os.environ))
    findings.append(await found("clock", server.clock) if is_up else Finding(name="clock", state="skip", says=_DOWN))
    return findings


def _models_of(environ: Mapping[str, str]) -> Finding:
    named = [name for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL") if environ.get(name)]
    if named:
        return Finding(name="models", state="ok", says=f"{' and '.join(named)} set here; the server will try them")
    return Finding(
        name="models",
        state="warn",
        says="only the demo model would answer",
        todo="Set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL before you start the server.",
    )
