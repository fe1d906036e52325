"""The prompt of the chat: line editing, history and Tab completion through readline."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from turnkeep.cli.terminal_text import clean_line, is_clean_line
from turnkeep.errors import TurnkeepError
from turnkeep_client.sync import Turnkeep

HISTORY_LINES = 1_000
BOLD, PLAIN = "\001\033[1;36m\002", "\001\033[0m\002"
"""\001 and \002 tell readline that the bytes between them take no room on the line."""


class Prompt:
    """Reads messages. Earlier lines are kept in the user's state directory."""

    def __init__(self, commands: Sequence[str], candidates: Callable[[str, str], list[str]]) -> None:
        self._commands = list(commands)
        self._candidates = candidates
        self._matches: list[str] = []
        self._file = _history_file()
        try:
            import readline
        except ImportError:  # Python was built without it; lines can still be read
            return
        readline.set_completer_delims(" \t\n")
        readline.set_completer(self._complete)
        readline.parse_and_bind("tab: complete")
        with contextlib.suppress(OSError):
            readline.read_history_file(self._file)

    def read(self, label: str) -> str | None:
        """The next message, or None when the user leaves: Ctrl-D, or Ctrl-C twice on an empty line."""
        was_interrupted = False
        label = clean_line(label)
        print()
        while True:
            try:
                line = input(f"{BOLD}{label}{' ' if label else ''}›{PLAIN} ")
                while line.endswith("\\"):
                    line = line[:-1] + "\n" + input(f"{BOLD}…{PLAIN} ")
                return line
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:
                print()
                if was_interrupted:
                    return None
                was_interrupted = True
                print("Ctrl-C again leaves, and so does Ctrl-D.")

    def save(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(self._file)
            self._file.chmod(0o600)

    def _complete(self, word: str, nth: int) -> str | None:
        if nth == 0:
            import readline

            line = readline.get_line_buffer()
            if line.startswith("/") and " " not in line:
                self._matches = [command for command in self._commands if command.startswith(word)]
            else:
                found = self._candidates(line, word) if line.startswith("/") else []
                self._matches = [each for each in found if is_clean_line(each)]  # readline shows them as they are
        return self._matches[nth] if nth < len(self._matches) else None


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "turnkeep" / "chat_history"


class ChatCompletion:
    """What Tab offers after a chat command: files, models, agents. Nothing, if the server does not answer."""

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
