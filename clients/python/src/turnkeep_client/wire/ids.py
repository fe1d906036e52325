"""Ids as the wire shows them: a prefix that a human knows and 32 hex digits, as `turn_0192f0c1…`.

One type per kind, so that a type checker tells a turn from a conversation. The server makes them (`turnkeep.ids`).
"""

from typing import NewType

OrgId = NewType("OrgId", str)
WorkspaceId = NewType("WorkspaceId", str)
UserId = NewType("UserId", str)
KeyId = NewType("KeyId", str)
AgentId = NewType("AgentId", str)
ConversationId = NewType("ConversationId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
FileId = NewType("FileId", str)
PageId = NewType("PageId", str)
TableId = NewType("TableId", str)
CallId = NewType("CallId", str)
"""Names one tool call. Ours are `call_…`; an imported call keeps the id that it came with."""
