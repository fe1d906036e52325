"""The judge checks whether a provider would refuse a request, and with which error message.

It is written from the providers' rules and from reported errors. It shares no code with the compiler, so that neither
can hide mistakes of the other. It checks a whole request body and lists every violation. Where endpoints of one
protocol differ, it follows the strictest one in use.

Decision: docs/decisions/0303
"""

from turnkeep.compiler.judge.anthropic import judge_anthropic
from turnkeep.compiler.judge.openai import judge_openai_chat, judge_openai_responses
from turnkeep.compiler.judge.violations import Violation, explain

__all__ = ["Violation", "explain", "judge_anthropic", "judge_openai_chat", "judge_openai_responses"]
