"""`turnkeep agents`: instructions, a model and tools, saved under a name."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from turnkeep.cli.file_io import download_file, read_text, upload_file
from turnkeep.cli.lookup import find_agent
from turnkeep.cli.output import moment, print_json, print_lines, print_table, print_text, remark, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest
from turnkeep_client.agents import RunError, RunFailed, RunResult
from turnkeep_client.stream import Step
from turnkeep_client.wire import Agent

agents = typer.Typer(no_args_is_help=True, help="List, show, create, change, delete and run agents.")

Named = Annotated[str, typer.Argument(metavar="AGENT", help="agent_…, or a name that only one agent has.")]
SpecFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A JSON or TOML file with the fields of an agent; - reads JSON from stdin."),
]


@agents.command("list")
@asks_a_server
def list_agents(
    server: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """List the agents of the workspace.

    **Examples**

    - `turnkeep agents list`

    - `turnkeep agents list --json | jq -r .name`
    """
    with server.connected() as turnkeep:
        found = turnkeep.agents.list()
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, one.name, one.model or "", _tool_count(one), moment(one.updated_at or None)) for one in found]
    nothing = "There are no agents yet. `turnkeep agents create --help` shows how to make one."
    print_table(("id", "name", "model", "tools", "changed"), rows, nothing=nothing)


@agents.command()
@asks_a_server
def show(
    server: ServerOptions,
    agent: Named,
    as_json: AsJson = False,
) -> None:
    """Show everything about an agent.

    **Examples**

    - `turnkeep agents show "Support"`

    - `turnkeep agents show agent_… --json > support.json`
    """
    with server.connected() as turnkeep:
        found = find_agent(turnkeep, agent)
    _print(found, as_json=as_json)


@agents.command()
@asks_a_server
def create(
    server: ServerOptions,
    file: SpecFile,
    name: Annotated[str | None, typer.Option("--name", help="Another name than the file gives.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create an agent from a file.

    The file holds `name`, `avatar`, `description`, `starters`, `instructions`, `model`, `tools`, `mcp_servers`,
    `skills`, `sandbox` and `environment`; only the name must be there. The secret for the signatures of its tool calls
    is printed; it is shown only once. As TOML:

        name = "Support"
        instructions = "Answer from our handbook, briefly."
        model = "anthropic/claude-sonnet-4-5"
        tools = ["search_pages"]

    **Examples**

    - `turnkeep agents create support.toml`

    - `turnkeep agents show "Support" --json | turnkeep agents create - --name "Support 2"`
    """
    spec = read_spec(file)
    if name is not None:
        spec["name"] = name
    if "name" not in spec:
        raise InvalidRequest(f"{file} gives no `name`. Add one, or say --name.")
    with server.connected() as turnkeep:
        made = turnkeep.agents.create(**spec)
    _print(made, as_json=as_json, says=f"{made.id} is saved as “{made.name}”.")
    if not as_json:
        say(f"tool secret: {made.tool_secret}")


@agents.command()
@asks_a_server
def update(
    server: ServerOptions,
    agent: Named,
    file: SpecFile,
    as_json: AsJson = False,
) -> None:
    """Change the fields of an agent that a file gives; the others stay.

    **Examples**

    - `turnkeep agents update "Support" support.toml`

    - `echo '{"model": "openai/gpt-5"}' | turnkeep agents update "Support" -`
    """
    spec = read_spec(file)
    if not spec:
        raise InvalidRequest(f"{file} gives no field of an agent, so there is nothing to change.")
    with server.connected() as turnkeep:
        changed = turnkeep.agents.update(find_agent(turnkeep, agent).id, **spec)
    _print(changed, as_json=as_json, says=f"{changed.id} (“{changed.name}”) is changed.")


@agents.command()
@asks_a_server
def delete(
    server: ServerOptions,
    agent: Named,
    as_json: AsJson = False,
) -> None:
    """Delete an agent. Its conversations stay.

    **Example**

    - `turnkeep agents delete "Support 2"`
    """
    with server.connected() as turnkeep:
        found = find_agent(turnkeep, agent)
        turnkeep.agents.delete(found.id)
    print_json({"id": found.id, "deleted": True}) if as_json else say(f"{found.id} (“{found.name}”) is deleted.")


@agents.command("rotate-tool-secret")
@asks_a_server
def rotate_tool_secret(
    server: ServerOptions,
    agent: Named,
    as_json: AsJson = False,
) -> None:
    """Make a new secret for the signatures of an agent's tool calls, and print it. It is shown only once.

    **Example**

    - `turnkeep agents rotate-tool-secret "Support"`
    """
    with server.connected() as turnkeep:
        secret = turnkeep.agents.rotate_tool_secret(find_agent(turnkeep, agent).id)
    print_json({"tool_secret": secret}) if as_json else say(secret)


@agents.command("add-skill")
@asks_a_server
def add_skill(
    server: ServerOptions,
    agent: Named,
    skill: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder with a SKILL.md, or a zip of one; its name is the skill's.")
    ],
    as_json: AsJson = False,
) -> None:
    """Give an agent a skill: a folder of texts with a SKILL.md. One of the same name is replaced.

    **Examples**

    - `turnkeep agents add-skill "Analyst" skills/charts`

    - `turnkeep agents add-skill "Analyst" charts.zip`
    """
    with server.connected() as turnkeep:
        changed = turnkeep.agents.add_skill(find_agent(turnkeep, agent).id, skill)
    _print(changed, as_json=as_json, says=_skills_in_words(changed))


@agents.command("remove-skill")
@asks_a_server
def remove_skill(
    server: ServerOptions,
    agent: Named,
    skill: Annotated[str, typer.Argument(metavar="NAME", help="The name of the skill.")],
    as_json: AsJson = False,
) -> None:
    """Take a skill away from an agent.

    **Example**

    - `turnkeep agents remove-skill "Analyst" charts`
    """
    with server.connected() as turnkeep:
        changed = turnkeep.agents.remove_skill(find_agent(turnkeep, agent).id, skill)
    _print(changed, as_json=as_json, says=_skills_in_words(changed))


@agents.command()
@asks_a_server
def run(
    server: ServerOptions,
    agent: Named,
    prompt: Annotated[str, typer.Argument(help="What to do; - reads it from standard input.")],
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", "-f", help="A file to give it; repeat for more.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for the files that it writes.", file_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent once in a sandbox, without a conversation. Ctrl-C stops the run.

    The result goes to standard output, steps to standard error; with --json every line that the sandbox writes.

    **Examples**

    - `turnkeep agents run "Analyst" "Plot the sales by month" --attach sales.csv --output plots`

    - `turnkeep agents run "Analyst" - --json < prompt.txt`
    """
    if prompt == "-":
        prompt = typer.get_text_stream("stdin").read()
    with server.connected() as turnkeep:
        found = find_agent(turnkeep, agent)
        file_ids = tuple(upload_file(turnkeep, path).id for path in attach or [])
        running = turnkeep.agents.run(found.id, prompt, attachment_ids=file_ids)
        for line in running:
            if as_json:
                print_lines([line])
            elif isinstance(line, Step) and line.status != "running":
                remark(f"{'✓' if line.status == 'succeeded' else '✗'} {line.name}")
            elif isinstance(line, RunResult):
                print_text(line.message)
            elif isinstance(line, RunError):
                raise RunFailed(line, turn_id=running.turn_id)
        written = turnkeep.turns.get(running.turn_id).files if running.turn_id else ()
        if output is not None and written:
            output.mkdir(parents=True, exist_ok=True)
        for file in written:
            where = f" → {download_file(turnkeep, file.id, output)}" if output is not None else f"  {file.id}"
            remark(f"▪ {file.name}{where}")


@agents.command()
@asks_a_server
def connections(
    server: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """List the connections of the workspace to MCP servers that ask for authorization.

    A person makes a connection on the page, in the form of an agent. Tokens are never shown.

    **Example**

    - `turnkeep agents connections`
    """
    with server.connected() as turnkeep:
        found = turnkeep.agents.mcp_connections()
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, one.url, one.status, one.issuer, moment(one.connected_at)) for one in found]
    print_table(("id", "address", "status", "issuer", "connected"), rows, nothing="There are no connections yet.")


@agents.command()
@asks_a_server
def disconnect(
    server: ServerOptions,
    connection: Annotated[str, typer.Argument(metavar="CONNECTION", help="mcp_…, as `connections` lists it.")],
    as_json: AsJson = False,
) -> None:
    """Remove a connection to an MCP server. Its tokens are forgotten.

    **Example**

    - `turnkeep agents disconnect mcp_…`
    """
    with server.connected() as turnkeep:
        turnkeep.agents.delete_mcp_connection(connection)
    print_json({"id": connection, "deleted": True}) if as_json else say(f"{connection} is removed.")


def _tool_count(agent: Agent) -> str:
    """Empty for members: the server does not show them the tools, nor the time of the last change."""
    return "" if not agent.updated_at else str(len(agent.tools))


def read_spec(file: Path) -> dict[str, Any]:
    """The fields of an agent in a file. Fields that the server adds are ignored, so output of `show --json` fits."""
    text = read_text(file)
    try:
        spec = tomllib.loads(text) if file.suffix == ".toml" else msgspec.json.decode(text)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as exc:
        raise InvalidRequest(f"{file} is not {'TOML' if file.suffix == '.toml' else 'JSON'}: {exc}.") from exc
    if not isinstance(spec, dict):
        raise InvalidRequest(f"{file} holds no object with the fields of an agent.")
    return {name: value for name, value in spec.items() if name not in _ADDED}


def _skills_in_words(agent: Agent) -> str:
    names = ", ".join(str(skill["name"]) for skill in agent.skills) or "none"
    return f"{agent.id} (“{agent.name}”) now has these skills: {names}."


_ADDED = {"id", "workspace_id", "created_at", "updated_at", "tool_secret", "warnings"}


def _print(agent: Agent, *, as_json: bool, says: str | None = None) -> None:
    for warning in agent.warnings:
        remark(f"warning: {warning}")
    if as_json:
        print_json(agent)
    elif says is not None:
        say(says)
    else:
        print_json(agent, indent=2)
