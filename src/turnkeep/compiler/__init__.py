"""What the model sees: from stored turns to a request that no provider refuses."""

from turnkeep.compiler.attachments import (
    Contents,
    FileContent,
    Gone,
    PictureContent,
    TextContent,
    wanted,
)
from turnkeep.compiler.budget import UNLIMITED, Budget, budget_for
from turnkeep.compiler.exchange import Repair
from turnkeep.compiler.identifiers import safe_name
from turnkeep.compiler.request import Compiled, Target, Thinking, compile

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
