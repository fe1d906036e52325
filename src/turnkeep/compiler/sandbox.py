"""The sandbox's history: `[{role, content, ts}]`, the texts of the turns before this one.

Tools, reasoning and the compiler's own notes are left out. A failed or cancelled turn is given as it is: the question,
and the answer as far as it came.
"""

from collections.abc import Sequence

from turnkeep.compiler.exchange import Exchange, Speaker
from turnkeep.model.blocks import JsonObject, paragraphs_of


def translate(exchanges: Sequence[Exchange]) -> list[JsonObject]:
    """One entry for all consecutive texts of one side in a turn."""
    entries: list[JsonObject] = []
    for exchange in exchanges:
        speaker: Speaker | None = None
        for utterance in exchange.utterances:
            text = paragraphs_of(utterance.blocks)
            if not text:
                continue
            if utterance.role == speaker:
                entries[-1] = {
                    "role": speaker,
                    "content": f"{entries[-1]['content']}\n\n{text}",
                    "ts": utterance.ts,
                }
            else:
                speaker = utterance.role
                entries.append({"role": speaker, "content": text, "ts": utterance.ts})
    return entries
