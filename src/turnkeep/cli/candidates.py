"""What Tab offers behind a command of the chat: files, models, agents."""

import contextlib
from pathlib import Path

from turnkeep.errors import TurnkeepError
from turnkeep_client.sync import Turnkeep


class Candidates:
    """Asked with the line so far and its last word. A server that does not answer offers nothing."""

    def __init__(self, turnkeep: Turnkeep) -> None:
        self._turnkeep = turnkeep

    def __call__(self, line: str, word: str) -> list[str]:
        command = line.split(" ", 1)[0]
        if command == "/attach":
            folder, _, start = word.rpartition("/")
            found = Path(folder or ("/" if word.startswith("/") else ".")).expanduser()
            with contextlib.suppress(OSError):
                prefix = f"{folder}/" if "/" in word else ""
                return [
                    f"{prefix}{each.name}{'/' if each.is_dir() else ''}"
                    for each in sorted(found.iterdir())
                    if each.name.startswith(start)
                ]
        with contextlib.suppress(TurnkeepError):
            if command == "/model":
                return [one.id for one in self._turnkeep.models.list() if one.id.startswith(word)]
            if command == "/agent":
                return [one.name for one in self._turnkeep.agents.list() if one.name.startswith(word)]
        return []
