"""How a model shall answer one question: sampling, limits, the choice of tools, and the form of the output.

A caller gives these options with a question, and they hold for that turn. A model that cannot honour an option is not
asked: the question is refused (`Abilities.options` in `providers/ports.py` says what a model can honour). The form of
the output is the exception: where a model cannot be bound to it, the engine checks the answer.
"""

from typing import Literal

from msgspec import Struct

from turnkeep_client.wire.blocks import JsonObject

REASONING_TOKENS = 8_192
"""With a lower limit of a reply there is no room for reasoning beside the answer."""

ToolChoice = Literal["auto", "none", "required"]


class OutputFormat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer shall be JSON: a document that fits `schema`, or any object if there is none."""

    name: str = "answer"
    description: str | None = None
    schema: JsonObject | None = None
    is_strict: bool = False


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the caller asks of the model. None leaves it to the provider.

    `tool_choice` holds for the first call of the model in a turn; `none` holds for all. With `required` for every call,
    the model could never answer. `tool` names the tool that must be called first.
    """

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_tokens: int | None = None
    """Of one reply. A turn with tools has several."""
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    tool_choice: ToolChoice | None = None
    tool: str | None = None
    parallel_tool_calls: bool | None = None
    output: OutputFormat | None = None

    @property
    def given(self) -> frozenset[str]:
        """The names of the options that are set."""
        if self == DEFAULT_SAMPLING:
            return frozenset()
        return frozenset(name for name in self.__struct_fields__ if getattr(self, name) is not None)

    @property
    def must_call(self) -> bool:
        """Whether the model must call a tool before it answers."""
        return self.tool is not None or self.tool_choice == "required"

    @property
    def excludes_reasoning(self) -> bool:
        """Whether Anthropic's models refuse to reason with these options. Other providers are not told to reason."""
        has_room = self.max_tokens is None or self.max_tokens > REASONING_TOKENS
        return self.must_call or not has_room


DEFAULT_SAMPLING = Sampling()
ALL_OPTIONS = frozenset(Sampling.__struct_fields__)
