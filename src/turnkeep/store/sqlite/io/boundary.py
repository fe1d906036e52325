"""The privacy boundary: a client connection on which no query can see more than its principal may.

An authorizer refuses everything but public views (`my_messages`, …) that filter by the principal. It cannot ask who
reads a table, only the name of the innermost view or CTE; so a CTE called `my_messages` would pass for the view. Each
public view therefore reads an inner view with a random name: base tables are open to inner views alone, and an inner
view to its public view alone. A query that spells an inner name, or asks to be explained, is refused unread.

Decision: docs/decisions/0106
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import apsw

from turnkeep.model.principals import Principal

VIEWS: Final = (
    "my_conversations",
    "my_turns",
    "my_messages",
    "my_files",
    "my_agents",
    "my_pages",
    "my_tables",
    "my_table_rows",
)

TENANT_TABLES: Final = frozenset(
    {"conversations", "turns", "messages", "files", "agents", "pages", "tables", "table_rows"}
)
"""Base tables that an inner view reads, filtered by who asks."""

ENGINE_TABLES: Final = frozenset(
    {
        "orgs",
        "workspaces",
        "members",
        "api_keys",
        "sessions",
        "invites",
        "mcp_connections",
        "shares",
        "feedback",
        "usage",
        "usage_days",
        "erasures",
        "one_time_tokens",
        "turn_events",
        "turn_logs",
        "outbox",
        "webhooks",
        "webhook_deliveries",
        "search_entries",
        "search_tokens",
        "search_tokens_config",
        "search_tokens_content",
        "search_tokens_data",
        "search_tokens_docsize",
        "search_tokens_idx",
        "unindexed",
        "passages",
        "passage_tokens",
        "passage_tokens_config",
        "passage_tokens_content",
        "passage_tokens_data",
        "passage_tokens_docsize",
        "passage_tokens_idx",
        "file_texts",
        "freed_bytes",
        "compaction",
        "row_batches",
        "row_tokens",
        "row_tokens_config",
        "row_tokens_content",
        "row_tokens_data",
        "row_tokens_docsize",
        "row_tokens_idx",
        "schema_migrations",
    }
)
"""Base tables that no client query may touch at all."""

# fmt: off
_FUNCTIONS: Final = frozenset({
    "abs", "avg", "coalesce", "count", "date", "datetime", "format", "glob", "group_concat", "ifnull", "iif", "instr",
    "json", "json_array", "json_array_length", "json_extract", "json_group_array", "json_group_object", "json_object",
    "json_quote", "json_type", "json_valid", "length", "like", "lower", "ltrim", "max", "min", "nullif",
    "octet_length", "printf", "replace", "round", "row_number", "rtrim", "strftime", "string_agg", "substr",
    "substring", "sum", "time", "total", "trim", "typeof", "unicode", "upper", "->", "->>",
    "turnkeep_org", "turnkeep_workspace", "turnkeep_user", "turnkeep_is_service",
})
# fmt: on
_TABLE_FUNCTIONS: Final = frozenset({"json_each", "json_tree"})
_REMEMBERED: Final = 500


class CurrentPrincipal:
    """The principal for which a connection reads now. While it is unset, no row is visible."""

    def __init__(self) -> None:
        self._principal: Principal | None = None

    def set(self, principal: Principal) -> None:
        self._principal = principal

    def unset(self) -> None:
        self._principal = None

    def org(self) -> str | None:
        return self._principal.org_id if self._principal else None

    def workspace(self) -> str | None:
        return self._principal.workspace_id if self._principal else None

    def user(self) -> str | None:
        return self._principal.user_id if self._principal else None

    def is_service(self) -> int:
        """1 only for the explicit marker: a service that acts for no user."""
        principal = self._principal
        return int(principal is not None and principal.role == "service" and principal.user_id is None)


def install_views(connection: apsw.Connection, texts: Mapping[str, str], current: CurrentPrincipal) -> dict[str, str]:
    """Make the views on this connection, for the principal in `current`; return the inner name of each public view."""
    functions: tuple[tuple[str, Callable[..., str | int | None]], ...] = (
        ("turnkeep_org", current.org),
        ("turnkeep_workspace", current.workspace),
        ("turnkeep_user", current.user),
        ("turnkeep_is_service", current.is_service),
    )
    for name, function in functions:
        connection.create_scalar_function(name, function, 0, deterministic=True)
    inner = {view: f"inner_{secrets.token_hex(16)}" for view in VIEWS}
    for view in VIEWS:
        connection.execute(f"CREATE TEMP VIEW {inner[view]} AS {texts[view]}")
        connection.execute(f"CREATE TEMP VIEW {view} AS SELECT * FROM {inner[view]}")
    return inner


def close_boundary(connection: apsw.Connection, inner: Mapping[str, str]) -> None:
    """From here on the connection serves nothing but its public views."""
    guard = _Guard(inner)
    connection.authorizer = guard.authorize
    connection.exec_trace = guard.trace


class _Guard:
    def __init__(self, inner: Mapping[str, str]) -> None:
        self._public_of = {hidden: public for public, hidden in inner.items()}
        self._public = frozenset(inner)
        self._passed: set[str] = set()

    def authorize(
        self, operation: int, first: str | None, second: str | None, _database: str | None, reader: str | None
    ) -> int:
        """The verdict on one thing that a statement wants, while it is prepared. `reader` is the innermost view."""
        match operation:
            case apsw.SQLITE_SELECT:
                allowed = True
            case apsw.SQLITE_READ:
                allowed = self._may_read(first, reader)
            case apsw.SQLITE_FUNCTION:
                allowed = second in _FUNCTIONS
            case apsw.SQLITE_TRANSACTION:
                allowed = True
            case _:
                allowed = False
        return apsw.SQLITE_OK if allowed else apsw.SQLITE_DENY

    def _may_read(self, table: str | None, reader: str | None) -> bool:
        if table in self._public or table in _TABLE_FUNCTIONS:
            return True
        if table in self._public_of:
            return reader == self._public_of[table]
        return table in TENANT_TABLES and reader in self._public_of

    def trace(self, cursor: apsw.Cursor, sql: str, _bindings: Any) -> bool:
        """The verdict on a statement before it runs: no plans, and no inner name, even a known one."""
        if sql in self._passed:
            return True
        if cursor.is_explain or any(hidden in sql.lower() for hidden in self._public_of):
            return False
        if len(self._passed) < _REMEMBERED:
            self._passed.add(sql)
        return True
