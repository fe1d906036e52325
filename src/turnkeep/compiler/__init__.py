"""The compiler: stored turns become a request that no provider refuses.

`compile` in `request.py` is its one function and the file to read first. The steps are: the window chooses the turns
(`window.py`), their rows and files are read for one target (`utterances.py`), each turn is repaired (`exchange.py`),
and the conversation is written in the provider's format (`provider_formats.py`). Turns that have ended are written once
(`history.py`). `judge/` checks requests by the
providers' rules and shares no code with the steps.

Everything here is pure: no clock, no file, no network, no database. The compiler does not know who asks or which
provider is configured.
"""

from turnkeep.compiler.exchange import Repair
from turnkeep.compiler.history import EncodedHistory, Encoding, compile_after, encode_turns
from turnkeep.compiler.provider_formats import safe_name
from turnkeep.compiler.request import Compiled, Target, Thinking, compile, reasoning_family
from turnkeep.compiler.utterances import (
    Contents,
    FileContent,
    Gone,
    PictureContent,
    TextContent,
    Unread,
    wanted,
)
from turnkeep.compiler.window import UNLIMITED, Budget, budget_for

__all__ = [
    "UNLIMITED",
    "Budget",
    "Compiled",
    "Contents",
    "EncodedHistory",
    "Encoding",
    "FileContent",
    "Gone",
    "PictureContent",
    "Repair",
    "Target",
    "TextContent",
    "Thinking",
    "Unread",
    "budget_for",
    "compile",
    "compile_after",
    "encode_turns",
    "reasoning_family",
    "safe_name",
    "wanted",
]
