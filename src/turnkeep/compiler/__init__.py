"""The compiler: stored turns become a request that no provider refuses.

`compile` in `request.py` is its one function and the file to read first. The steps are: the window chooses the turns
(`window.py`), their rows are read for one target (`utterances.py`, `attachments.py`), each turn
is repaired (`repair.py`), and one module per target writes the provider's format (`anthropic.py`, `openai_chat.py`,
`openai_responses.py`). `judge/` checks requests by the providers' rules and shares no code with the
steps.

Everything here is pure: no clock, no file, no network, no database. The compiler does not know who asks or which
provider is configured.
"""

from turnkeep.compiler.attachments import (
    Contents,
    FileContent,
    Gone,
    PictureContent,
    TextContent,
    wanted,
)
from turnkeep.compiler.exchange import Repair
from turnkeep.compiler.identifiers import safe_name
from turnkeep.compiler.request import Compiled, Target, Thinking, compile
from turnkeep.compiler.window import UNLIMITED, Budget, budget_for

__all__ = [
    "UNLIMITED",
    "Budget",
    "Compiled",
    "Contents",
    "FileContent",
    "Gone",
    "PictureContent",
    "Repair",
    "Target",
    "TextContent",
    "Thinking",
    "budget_for",
    "compile",
    "safe_name",
    "wanted",
]
