"""`turnkeep doctor` checks an installation. `turnkeep doctor FILE` judges a transcript and repairs it.

The second answers: if the user sends one more message, will the provider refuse it, and why? So a transcript that ends
with an answer is judged as if another question followed.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct, structs

from turnkeep.cli.database import DatabaseUrl, DataDir, settings_of
from turnkeep.cli.output import clean_line, print_json, print_text, say
from turnkeep.cli.server_options import Key, Url
from turnkeep.compiler import UNLIMITED, Compiled, Repair, Target, Thinking, compile
from turnkeep.compiler.judge import (
    Violation,
    explain,
    judge_anthropic,
    judge_openai_chat,
    judge_openai_responses,
)
from turnkeep.errors import Defect, InvalidRequest
from turnkeep.transfer.transcripts import Form, Transcript, read_transcript, write_transcript
from turnkeep_client.discovery import find_server

NAMES: dict[Form, str] = {
    "anthropic": "Anthropic messages",
    "openai_chat": "OpenAI chat messages",
    "openai_responses": "OpenAI Responses items",
    "plain": "plain messages",
}
_TARGETS: dict[Form, Target] = {
    "anthropic": "anthropic",
    "openai_chat": "openai_chat",
    "openai_responses": "openai_responses",
    "plain": "sandbox",
}
_NEXT = {"role": "user", "content": "And then?"}


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The violations in a transcript, the repairs, and the repaired transcript."""

    transcript: Transcript
    violations: list[Violation]
    repairs: tuple[Repair, ...]
    repaired: Any

    @property
    def is_broken(self) -> bool:
        return bool(self.violations)


def doctor(
    file: Annotated[
        Path | None, typer.Argument(help="A transcript: a JSON list of messages, a request body, or JSON lines.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the repaired transcript.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only report; exit with 1 if it is broken.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON, for scripts.")] = False,
    form: Annotated[
        str | None,
        typer.Option(help="anthropic, openai_chat, openai_responses or plain, if it cannot be detected."),
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Also compare all rows with each other, as after a restore. Reads them all.")
    ] = False,
    url: Url = None,
    key: Key = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Check the installation: server, database, roles, sizes, erasures, webhooks, bucket, files, Redis, runner, models,
    clock. With a FILE: say why a provider would refuse that transcript, and write one that it accepts.

    Exits with 1 if something does not work (or, with --check, if the transcript is broken).

    **Examples**

    - `turnkeep doctor`

    - `turnkeep doctor --rows`

    - `turnkeep doctor --json | jq -r '.checks[] | select(.state == "fail").todo'`

    - `turnkeep doctor chat.json --output fixed.json`
    """
    if file is None:
        if output is not None or form is not None:
            raise InvalidRequest("--output and --form are about a transcript: name its file.")
        _examine_installation(url, key, data_dir, database_url, as_json=as_json, rows=rows)
        return
    diagnosis = diagnose(_parse(file), form=_form(form))
    written: Path | None = None
    if diagnosis.is_broken and not check:
        written = output or file.with_name(f"{file.stem}.repaired.json")
        if written.resolve() == file.resolve():
            raise InvalidRequest(f"{file} is the transcript itself; name another --output.")
        _write(written, diagnosis.repaired)
    if as_json:
        print_json(_as_report(diagnosis, written), indent=2)
    else:
        print_text(_as_words(file, diagnosis, written))
    if check and diagnosis.is_broken:
        sys.exit(1)


def _examine_installation(
    url: str | None, key: str | None, data_dir: str | None, database_url: str | None, *, as_json: bool, rows: bool
) -> None:
    from turnkeep.cli.doctor_checks import check_up

    settings = settings_of(data_dir, database_url)
    place = find_server(url, key, data_dir=data_dir)
    findings = asyncio.run(check_up(settings, place, is_remote=not place.is_loopback, rows=rows))
    is_well = all(finding.state != "fail" for finding in findings)
    if as_json:
        print_json({"ok": is_well, "checks": findings})
    else:
        for each in findings:
            say(f"{each.state:<4}  {each.name:<9}  {each.says}")
            if each.todo is not None:
                say(f"{'':<17}→ {each.todo}")
    if not is_well:
        sys.exit(1)


def diagnose(document: Any, *, form: Form | None = None) -> Diagnosis:
    """Judge the transcript, repair it, and judge the result. Raises Defect if the result would still be refused."""
    transcript = read_transcript(document, form=form)
    violations = _judge(transcript, document)
    compiled = compile(
        transcript.rows,
        target=_TARGETS[transcript.form],
        open_turn=transcript.open_turn if transcript.form != "plain" else None,
        budget=UNLIMITED,
        thinking=_thinking(transcript),
        cache_markers=False,
    )
    repaired = _settled(write_transcript(transcript, compiled.messages), compiled)
    left = _judge(transcript, repaired)
    if left:
        raise Defect(f"The repaired transcript would still be refused: {left[0].message} Please report this.")
    return Diagnosis(transcript=transcript, violations=violations, repairs=compiled.repairs, repaired=repaired)


def _thinking(transcript: Transcript) -> Thinking:
    setting = (transcript.body or {}).get("thinking")
    mode = setting.get("type") if isinstance(setting, dict) else None
    return "enabled" if mode == "enabled" else "off" if mode == "disabled" else "adaptive"


def _settled(document: Any, compiled: Compiled) -> Any:
    """The request body with other fields corrected, where the repaired messages need it."""
    if compiled.target != "anthropic" or not isinstance(document, dict):
        return document
    settled = dict(document)
    if not compiled.thinking and isinstance(document.get("thinking"), dict):
        settled["thinking"] = {"type": "disabled"}
    if compiled.tool_names and document.get("tools") == []:
        settled["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in compiled.tool_names]
    return settled


def _judge(transcript: Transcript, document: Any) -> list[Violation]:
    """The violations of the next request. Fields that a bare list does not have (tools, thinking) are assumed valid."""
    body = dict(document) if isinstance(document, dict) else {transcript.key: document}
    messages = [_unwrapped(item) for item in body[transcript.key]] if isinstance(body[transcript.key], list) else []
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" or last.get("type") in {"reasoning", "function_call"}:
        messages = [*messages, _NEXT]
    match transcript.form:
        case "anthropic":
            given = {"tools": [{"name": "any"}], "thinking": {"type": "adaptive"}}
            return judge_anthropic({**given, **body, "messages": messages}) if messages else []
        case "openai_responses":
            return judge_openai_responses({"store": False, **body, "input": messages}) if messages else []
        case "openai_chat" | "plain":
            return judge_openai_chat({**body, "messages": messages}) if messages else []
        case "ai_sdk" | "rows":
            raise Defect("`read_transcript` refuses these forms.")


def _unwrapped(item: Any) -> dict[str, Any]:
    inner = item.get("message") if isinstance(item, dict) else None
    return inner if isinstance(inner, dict) and "role" in inner else item


def _parse(file: Path) -> Any:
    try:
        text = file.read_text("utf-8-sig")
    except FileNotFoundError as exc:
        raise InvalidRequest(f"There is no file {file}.") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"{file} cannot be read as text: {exc}") from exc
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        lines = _parse_lines(text)
        if lines is None:
            raise InvalidRequest(f"{file} is not JSON: {exc}") from exc
        return lines


def _parse_lines(text: str) -> list[Any] | None:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError:
        return None


def _form(name: str | None) -> Form | None:
    for form in NAMES:
        if form == name:
            return form
    if name is not None:
        raise InvalidRequest(f"{name!r} is not a form: {', '.join(NAMES)}.")
    return None


def _write(path: Path, document: Any) -> None:
    try:
        path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", "utf-8")
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be written: {exc}") from exc


def _as_words(file: Path, diagnosis: Diagnosis, written: Path | None) -> str:
    transcript = diagnosis.transcript
    turns = len({row.turn_id for row in transcript.rows})
    lines = [f"{clean_line(file.name)}: {NAMES[transcript.form]}, {len(transcript.rows)} messages in {turns} turns"]
    lines += [f"  note: {clean_line(remark)}" for remark in transcript.remarks]
    if not diagnosis.is_broken:
        return "\n".join([*lines, "Nothing is wrong with it: a provider would accept the next message."])
    count = len(diagnosis.violations)
    lines += ["", f"A provider would refuse the next message ({count} {'reason' if count == 1 else 'reasons'}):"]
    for violation in diagnosis.violations:
        lines += [f"  {violation.path}: {explain(violation.rule)}", f"    “{clean_line(violation.message)}”"]
    if written is None:
        return "\n".join(lines)
    lines += ["", "What was done:", *(f"  {clean_line(repair.detail)}" for repair in diagnosis.repairs)]
    return "\n".join([*lines, "", f"Repaired: {clean_line(str(written))}"])


def _as_report(diagnosis: Diagnosis, written: Path | None) -> dict[str, Any]:
    transcript = diagnosis.transcript
    return {
        "is_broken": diagnosis.is_broken,
        "form": transcript.form,
        "messages": len(transcript.rows),
        "turns": len({row.turn_id for row in transcript.rows}),
        "violations": [
            {**structs.asdict(violation), "explanation": explain(violation.rule)} for violation in diagnosis.violations
        ],
        "repairs": [{"kind": repair.kind, "detail": repair.detail} for repair in diagnosis.repairs],
        "remarks": list(transcript.remarks),
        "output": os.fsencode(written).decode(errors="replace") if written else None,
    }
