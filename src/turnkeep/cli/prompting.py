"""A line from the user: editing, history and completion as readline has them."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from turnkeep.cli.terminal_text import clean_line, is_clean_line

HISTORY_LINES = 1_000
BOLD, PLAIN = "\001\033[1;36m\002", "\001\033[0m\002"
"""The marks tell readline that these bytes take no room."""


class Prompt:
    """Reads messages. What was typed before is kept in the user's state directory."""

    def __init__(self, commands: Sequence[str], candidates: Callable[[str, str], list[str]]) -> None:
        self._commands = list(commands)
        self._candidates = candidates
        self._matches: list[str] = []
        self._file = _history_file()
        try:
            import readline
        except ImportError:  # a Python without it still reads lines
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
