"""The sandbox's history: `[{role, content, ts}]`, the texts of the turns before this one.

Tools, reasoning and our own notes do not appear. A failed or cancelled turn reads as it stands: a question, and as
much of an answer as there was.
"""

from collections.abc import Sequence

from turnkeep.compiler.exchange import Exchange, Speaker
from turnkeep_client.wire.blocks import JsonObject, paragraphs_of


def translate(exchanges: Sequence[Exchange]) -> list[JsonObject]:
    """One entry for what each side said in a turn, until the other side spoke."""
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
