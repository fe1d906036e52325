"""From what somebody sent to what is stored of an agent: whole, with its secrets sealed.

A secret that comes masked is the one that is stored. It is kept only where it goes to the same place as before:
otherwise one could have a secret sent to an address of one's own, and read there what the API never shows.
"""

from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

from turnkeep.config import MASK
from turnkeep.errors import Forbidden, InvalidRequest
from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec, SecretPlace, with_secrets
from turnkeep.tools.vault import SecretUnreadable, Vault
from turnkeep_client.wire.agents import AgentPatch, McpServer, NewAgent


def given_fields(asked: NewAgent | AgentPatch) -> dict[str, Any]:
    return {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not UNSET}


def spec_of(
    asked: NewAgent | AgentPatch, *, before: AgentSpec | None, vault: Vault, org_id: OrgId, may_run_commands: bool
) -> AgentSpec:
    """What is stored. With a patch, everything that was left out stays as it was `before`.

    Raises Forbidden for a command that the caller may not save, InvalidRequest for a masked secret that nobody stored.
    """
    given = given_fields(asked)
    _check_commands(given.get("mcp_servers", ()), before, may_run_commands=may_run_commands)
    plain = {name: _plain(value) for name, value in given.items()}
    fresh = msgspec.convert({"name": "", **plain}, AgentSpec)
    sealed = _sealed(fresh, before, vault, org_id)
    if before is None or isinstance(asked, NewAgent):
        return sealed
    return msgspec.structs.replace(before, **{name: getattr(sealed, name) for name in given})


def _sealed(spec: AgentSpec, before: AgentSpec | None, vault: Vault, org_id: OrgId) -> AgentSpec:
    stored = {} if before is None else _stored_secrets(before)
    to = _destinations(spec)

    def seal(place: SecretPlace, text: str) -> str:
        if text != MASK:
            return vault.seal(org_id, text)
        kept = stored.get((place, to.get((place.group, place.owner))))
        if kept is None:
            raise InvalidRequest(
                f"`{place}` is masked ({MASK}), and there is no stored value for it that goes to the same place. "
                "Send the value itself."
            )
        try:
            return vault.renew(org_id, kept)
        except SecretUnreadable:
            return kept  # its key may come back

    return with_secrets(spec, seal)


def _stored_secrets(spec: AgentSpec) -> dict[tuple[SecretPlace, Any], str]:
    to = _destinations(spec)
    found: dict[tuple[SecretPlace, Any], str] = {}

    def note(place: SecretPlace, text: str) -> str:
        found[place, to.get((place.group, place.owner))] = text
        return text

    with_secrets(spec, note)
    return found


def _destinations(spec: AgentSpec) -> dict[tuple[str, str], tuple[str, ...]]:
    """Where the secrets of each tool and server go: an origin, or a program with its arguments."""
    items = [("tools", tool) for tool in spec.tools] + [("mcp_servers", server) for server in spec.mcp_servers]
    return {(group, str(item["name"])): _destination(item) for group, item in items if isinstance(item, dict)}


def _destination(item: dict[str, Any]) -> tuple[str, ...]:
    if item.get("command") is not None:
        return (str(item["command"]), *map(str, item.get("args", ())))
    parts = urlsplit(str(item.get("url", "")))
    return (parts.scheme.lower(), parts.netloc.lower())


def _check_commands(servers: list[McpServer], before: AgentSpec | None, *, may_run_commands: bool) -> None:
    if may_run_commands:
        return
    stored = () if before is None else before.mcp_servers
    known = {
        (server["name"], _destination(server)): dict.fromkeys(server.get("env", {}), MASK)
        for server in stored
        if server.get("command") is not None
    }
    for server in servers:
        if server.command is None:
            continue
        if known.get((server.name, (server.command, *server.args))) != server.env:
            raise Forbidden(
                "Only the operator's own key may save an MCP server that is a command, since this server starts it. "
                "Use a `url`, or ask the operator to set TURNKEEP_ALLOW_MCP_COMMANDS=1 (for keys of a whole org)."
            )


def _plain(value: Any) -> Any:
    plain = msgspec.to_builtins(value)
    return tuple(plain) if isinstance(plain, list) else plain
