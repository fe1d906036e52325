"""An interactive chat: the prompt, its commands, and turns that are drawn while they run."""

import contextlib
import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from rich.text import Text

from turnkeep.cli.agents import find_agent
from turnkeep.cli.live_view import LiveView
from turnkeep.cli.markdown import message_as_markdown
from turnkeep.cli.output import moment, size_of
from turnkeep.cli.prompt import ChatCompletion, Prompt
from turnkeep.cli.screen import Screen, markdown
from turnkeep.cli.terminal_text import clean_line
from turnkeep.errors import TurnkeepError
from turnkeep_client.retry import Trouble
from turnkeep_client.sync import Stream, Turnkeep
from turnkeep_client.wire import Conversation, File

HISTORY = 15
SHOWN_MESSAGES = 6


class ChatSession:
    """One chat, from the first prompt to the end."""

    def __init__(
        self,
        turnkeep: Turnkeep,
        *,
        conversation_id: str | None,
        model: str | None,
        agent_id: str | None,
        kind: Literal["sandbox"] | None,
        files: Sequence[Path],
    ) -> None:
        self._turnkeep = turnkeep
        self._screen = Screen(highlight=False)
        self._conversation_id = conversation_id
        self._model = model
        self._agent_id = agent_id
        self._kind = kind
        self._waiting_files = list(files)
        self._attached: list[File] = []
        self._last_turn: str | None = None
        self._listed: list[Conversation] = []
        self._is_leaving = False
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "attach": (self._attach, "/attach FILE…: send files with the next message"),
            "download": (self._download, "/download FILE_ID [PATH]: fetch a file that an answer shows"),
            "model": (self._choose_model, "/model [NAME]: use this model; without a name, list them"),
            "agent": (
                self._choose_agent,
                "/agent [NAME]: use this agent in a new conversation; without one, list them",
            ),
            "history": (self._show_history, "/history [WORDS]: your conversations, or those with these words"),
            "open": (self._open, "/open NUMBER: go on with a conversation of the list (or conv_…)"),
            "retry": (self._retry, "/retry: ask the last question again"),
            "new": (self._begin, "/new: start another conversation"),
            "help": (self._help, "/help: this list"),
            "quit": (self._quit, "/quit: leave (also Ctrl-D)"),
        }
        self._prompt = Prompt([f"/{name}" for name in self._commands], ChatCompletion(turnkeep))

    def run(self) -> None:
        """Read and answer messages until the user leaves."""
        self._print_note(f"Turnkeep at {self._turnkeep.place.url}. /help lists the commands, Ctrl-D leaves.")
        for path in self._waiting_files:
            self._guarded(partial(self._attach, shlex.quote(str(path))))
        if self._conversation_id is not None:
            self._guarded(partial(self._show, self._conversation_id))
        while not self._is_leaving:
            line = self._prompt.read(self._label())
            if line is None:
                break
            if line.strip() or self._attached:
                self._guarded(partial(self._handle_line, line))
        self._prompt.save()
        if self._conversation_id is not None:
            self._print_note(f"Go on with it: turnkeep chat -c {self._conversation_id}")

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run this. An error is printed as one line, and the chat goes on."""
        try:
            work()
        except TurnkeepError as exc:
            self._print_error(exc.detail)
        except KeyboardInterrupt:
            self._print_note("Never mind.")

    def _handle_line(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        if not name.startswith("/") or name.count("/") > 1:
            self._ask(line)
            return
        known = self._commands.get(name[1:])
        if known is None:
            self._print_note(f"There is no command {name}. /help lists them; begin with a space to send such a line.")
            return
        known[0](rest.strip())

    # --- turns

    def _ask(self, message: str) -> None:
        files = self._attached
        stream = self._turnkeep.stream(
            message.strip() if message.startswith(" ") else message,
            conversation_id=self._conversation_id,
            attachment_ids=[file.id for file in files],
            model=self._model,
            agent_id=self._agent_id if self._conversation_id is None else None,
            kind=self._kind if self._conversation_id is None else None,
            if_busy="enqueue",
            background=True,
            on_trouble=self._on_trouble,
        )
        self._attached = []
        try:
            self._watch(stream)
        except TurnkeepError:
            if stream.turn_id is None:
                self._attached = files  # nothing was sent, so they go with the next message
            raise

    def _watch(self, stream: Stream) -> None:
        """Draw a turn to its end. The first Ctrl-C stops it, the second leaves it."""
        has_stopped = False
        with stream, LiveView(self._screen) as self._live_view:
            while not stream.is_over:
                try:
                    for _ in stream:
                        self._live_view.show(stream.view)
                    break
                except KeyboardInterrupt:
                    if has_stopped:
                        self._is_leaving = True
                        break
                    has_stopped = True
                    self._live_view.note("stopping")
                    self._stop(stream)
        self._conversation_id = stream.conversation_id or self._conversation_id
        self._last_turn = stream.turn_id
        if stream.is_over:
            answer = stream.settled()
            if answer.status == "cancelled":
                self._print_note("Stopped. What was said is kept.")
            elif answer.error is not None:
                self._print_error(f"{answer.error.message} ({answer.error.code})")

    def _stop(self, stream: Stream) -> None:
        try:
            stream.cancel()
        except KeyboardInterrupt:
            self._is_leaving = True
        self._live_view.note(None)

    def _on_trouble(self, trouble: Trouble) -> None:
        with contextlib.suppress(AttributeError):
            self._live_view.note(f"{short_reason(trouble.reason)} Trying again")

    # --- commands

    def _attach(self, rest: str) -> None:
        for name in _split(rest):
            file = self._turnkeep.files.upload(Path(name).expanduser(), conversation_id=self._conversation_id)
            self._attached.append(file)
            self._print_note(f"attached {file.name} ({size_of(file.size)})")
        if not rest:
            named = ", ".join(file.name for file in self._attached)
            self._print_note(f"attached: {named}" if named else "Which file? /attach report.pdf")

    def _download(self, rest: str) -> None:
        file_id, _, path = rest.partition(" ")
        if not file_id.startswith("file_"):
            self._print_note("Which file? /download file_…, as an answer shows it.")
            return
        target = Path(path.strip()).expanduser() if path.strip() else None
        self._print_note(f"written to {self._turnkeep.files.download(file_id, target)}")

    def _choose_model(self, name: str) -> None:
        names = [model.id for model in self._turnkeep.models.list()]
        if not name:
            self._list(
                [f"{'→' if one == self._model else ' '} {one}" for one in names], "This server reaches no model."
            )
            return
        if name not in names and "/" not in name:
            near = [one for one in names if name.casefold() in one.casefold()]
            if len(near) != 1:
                self._print_note(
                    f"{'Several models have' if near else 'No model has'} {name!r} in their name. /model lists them."
                )
                return
            name = near[0]
        self._model = name
        self._print_note(f"From here on {name} answers.")

    def _choose_agent(self, name: str) -> None:
        if not name:
            found = [f"{'→' if one.id == self._agent_id else ' '} {one.name}" for one in self._turnkeep.agents.list()]
            self._list(found, "There are no agents yet: `turnkeep agents create --help`.")
            return
        agent = find_agent(self._turnkeep, name)
        self._agent_id, self._conversation_id = agent.id, None
        self._print_note(f"A new conversation with {agent.name}.")

    def _show_history(self, words: str) -> None:
        self._listed = list(self._turnkeep.conversations.list(words or None, limit=HISTORY))
        lines = [
            f"{place:>3}  {moment(one.updated_at)}  {one.snippet or one.title or one.preview or 'empty'}"
            for place, one in enumerate(self._listed, start=1)
        ]
        self._list(lines, "No conversation has these words." if words else "There are no conversations yet.")
        if lines:
            self._print_note("/open NUMBER goes on with one.")

    def _open(self, which: str) -> None:
        if which.isdigit() and 0 < int(which) <= len(self._listed):
            which = self._listed[int(which) - 1].id
        elif not which.startswith("conv_"):
            self._print_note("Which one? /history lists them; then /open 1.")
            return
        self._show(which)

    def _show(self, conversation_id: str) -> None:
        conversation = self._turnkeep.conversations.get(conversation_id)
        self._conversation_id, self._agent_id = conversation.id, conversation.agent_id
        self._last_turn = conversation.head_turn_id
        latest = list(self._turnkeep.conversations.messages(conversation.id, order="desc", limit=SHOWN_MESSAGES))
        for message in reversed(latest):
            self._screen.print(markdown(message_as_markdown(message)))
            self._screen.print()
        if conversation.running_turn is not None:
            self._watch(self._turnkeep.turns.follow(conversation.running_turn.id, on_trouble=self._on_trouble))

    def _retry(self, _: str) -> None:
        if self._conversation_id is None or self._last_turn is None:
            self._print_note("There is no question yet to ask again.")
            return
        self._watch(
            self._turnkeep.turns.regenerate(
                self._conversation_id,
                self._last_turn,
                model=self._model,
                background=True,
                on_trouble=self._on_trouble,
            )
        )

    def _begin(self, _: str) -> None:
        self._conversation_id, self._last_turn = None, None
        self._print_note("A new conversation.")

    def _help(self, _: str) -> None:
        self._list([text for _, text in self._commands.values()], "")
        self._print_note("Ctrl-C stops an answer. A line that ends with \\ goes on in the next one.")

    def _quit(self, _: str) -> None:
        self._is_leaving = True

    # --- the prompt

    def _label(self) -> str:
        files = f" +{len(self._attached)}" if self._attached else ""
        return f"{self._model or ''}{files}".strip()

    def _print_note(self, text: str) -> None:
        self._screen.print(Text(clean_line(text), style="dim"))

    def _print_error(self, text: str) -> None:
        self._screen.print(Text(clean_line(text), style="red"))

    def _list(self, lines: Sequence[str], nothing: str) -> None:
        for line in lines:
            self._screen.print(Text(clean_line(line)), no_wrap=True, overflow="ellipsis")
        if not lines and nothing:
            self._print_note(nothing)


def short_reason(reason: str) -> str:
    """The first sentence, which fits beside a spinner."""
    if "connection" in reason.lower():
        return "The connection is lost."
    return reason.partition(". ")[0].rstrip(".") + "."


def _split(rest: str) -> list[str]:
    """File names, split as a shell does; a text that is the name of one existing file, with spaces, is not split."""
    if not rest or os.path.exists(os.path.expanduser(rest)):
        return [rest] if rest else []
    try:
        return shlex.split(rest)
    except ValueError:
        return [rest]
