"""The judge: would a provider refuse this request, and with which words?

Written from the providers' rules and from the errors that people report, and sharing no code with the compiler, so
that neither can hide the other's mistakes. It looks at a whole request body and lists every violation. Where
endpoints of one protocol differ, it takes the side of the strictest that is in use.
"""

from turnkeep.compiler.judge.anthropic import judge_anthropic
from turnkeep.compiler.judge.openai_chat import judge_openai_chat
from turnkeep.compiler.judge.openai_responses import judge_openai_responses
from turnkeep.compiler.judge.violations import Violation, explain

__all__ = ["Violation", "explain", "judge_anthropic", "judge_openai_chat", "judge_openai_responses"]
