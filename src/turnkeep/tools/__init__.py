"""Tools: what an agent can do, behind one port.

`ports.py` defines a tool. There are native tools (`functions.py`: Python functions of the operator), HTTP endpoints
(`http_tools.py`) and MCP servers (`mcp.py`). `registry.py` finds the tools of an agent. Where outgoing HTTP may go is
decided by the address guard (`addresses.py`) and enforced by the clients (`http_tools.py`, `mcp_session.py`).
Credentials are encrypted in the vault (`vault.py`) and masked in results (`secret_masking.py`).

This package must not know turns, the store or the API: the engine calls a tool with a context and records the outcome.

Read `ports.py` first, then `registry.py`.
"""
