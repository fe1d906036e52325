"""`turnkeep tables`: rows that agents search; import of CSV with a progress bar, and export."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from turnkeep.cli.file_io import whole_file
from turnkeep.cli.lookup import find_table
from turnkeep.cli.output import ProgressBar, moment, print_json, print_lines, print_table, remark, say, size_of
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest
from turnkeep_client.knowledge import ImportStep, size_of_source
from turnkeep_client.wire import Row, Table
from turnkeep_client.wire.blocks import JsonObject

tables = typer.Typer(no_args_is_help=True, help="List, search and fill tables; CSV in and out, with progress.")

Named = Annotated[str, typer.Argument(metavar="TABLE", help="table_…, or its name.")]
OPERATORS = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "~": "contains"}


@tables.command("list")
@asks_a_server
def list_tables(
    server: ServerOptions,
    as_json: AsJson = False,
) -> None:
    """List the tables of the workspace.

    **Example**

    - `turnkeep tables list`
    """
    with server.connected() as turnkeep:
        found = turnkeep.tables.list()
        if as_json:
            print_lines(found)
            return
        rows = [
            (one.id, one.name, f"{one.row_count:,}", moment(one.updated_at), ", ".join(c.name for c in one.columns))
            for one in found
        ]
    nothing = "There are no tables yet. `turnkeep tables import --help` shows how to make one of a CSV file."
    print_table(("id", "name", "rows", "changed", "columns"), rows, nothing=nothing)


@tables.command()
@asks_a_server
def rows(
    server: ServerOptions,
    table: Named,
    q: Annotated[str | None, typer.Argument(metavar="[WORDS]", help="Only rows that these words find.")] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="A condition, as Price>=10, Name~salt or Since<2024-06-01.")
    ] = None,
    sort: Annotated[str | None, typer.Option("--sort", help="A column; -Column: greatest first.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table: all, those that words find, or those that fit conditions.

    **Examples**

    - `turnkeep tables rows Spices`

    - `turnkeep tables rows Spices saffron --where "Price<10" --sort=-Price`
    """
    filters = [condition(each) for each in where or []]
    with server.connected() as turnkeep:
        named = find_table(turnkeep, table)
        found = turnkeep.tables.rows(named.id, q, filters=filters, sort=sort, limit=limit)
        if as_json:
            print_lines(found)
            return
        shown = [_cells(named, row) for row in found]
    print_table(("row", *(column.name for column in named.columns)), shown, nothing="No row fits.")


@tables.command("import")
@asks_a_server
def import_(
    server: ServerOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file whose first line names the columns.")],
    table: Annotated[str | None, typer.Option("--table", help="Add to this table (its name or table_…).")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The name of a new table; by default the file's.")] = None,
    charset: Annotated[str | None, typer.Option("--charset", help="The file's encoding, if it is not UTF-8.")] = None,
    delimiter: Annotated[str | None, typer.Option("--delimiter", help="The separator; detected by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Import a CSV file: all of it, or nothing. Ctrl-C undoes it.

    **Examples**

    - `turnkeep tables import spices.csv`

    - `turnkeep tables import more.csv --table Spices`
    """
    if not file.is_file():
        raise InvalidRequest(f"There is no file {file}.")
    with server.connected() as turnkeep:
        table_id = None if table is None else find_table(turnkeep, table).id
        wanted = None if table_id is not None else name or file.stem
        with ProgressBar("sending", max(1, size_of_source(file))) as bar:
            steps = turnkeep.tables.import_csv(
                file, table_id=table_id, name=wanted, charset=charset, delimiter=delimiter, on_sent=bar.bytes
            )
            last = _follow(steps, bar)
    if last is None or last.table is None:
        raise InvalidRequest("The import ended without an answer. Look at the table before you repeat it.")
    print_json(last.table) if as_json else say(
        f"{last.rows:,} rows are in “{last.table.name}” ({last.table.id}), which has {last.table.row_count:,} now."
    )


@tables.command()
@asks_a_server
def export(
    server: ServerOptions,
    table: Named,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="By default standard output.")] = None,
) -> None:
    """Write a table as CSV. Cells that a spreadsheet would run as a formula get a `'` before them.

    **Example**

    - `turnkeep tables export Spices spices.csv`
    """
    with server.connected() as turnkeep:
        found, written, lines = find_table(turnkeep, table), 0, 0
        # On a terminal the rows themselves show how far it has come.
        with ProgressBar("exporting", found.row_count + 1) if file else nullcontext() as bar, whole_file(file) as out:
            for piece in turnkeep.tables.export_csv(found.id):
                out.write(piece)
                written, lines = written + len(piece), lines + piece.count(b"\n")
                if bar is not None:
                    bar.update(lines, said=size_of(written))
    if file is not None:
        remark(f"{file} is written.")


@tables.command()
@asks_a_server
def delete(
    server: ServerOptions,
    table: Named,
    as_json: AsJson = False,
) -> None:
    """Delete a table with all its rows, for good.

    **Example**

    - `turnkeep tables delete Spices`
    """
    with server.connected() as turnkeep:
        found = find_table(turnkeep, table)
        turnkeep.tables.delete(found.id)
    print_json({"id": found.id, "deleted": True}) if as_json else say(f"{found.id} (“{found.name}”) is deleted.")


def condition(text: str) -> JsonObject:
    """`Price>=10` as a filter of the API. Raises InvalidRequest."""
    for sign in ("!=", "<=", ">=", "=", "<", ">", "~"):
        column, found, value = text.partition(sign)
        if found and column.strip():
            return {"column": column.strip(), "op": OPERATORS[sign], "value": value.strip()}
    raise InvalidRequest(f"{text!r} is no condition. Write it as Price>=10, Name=Salt or Name~salt.")


def _cells(table: Table, row: Row) -> list[str]:
    values = [row.values.get(column.name) for column in table.columns]
    return [str(row.row), *("" if value is None else str(value) for value in values)]


def _follow(steps: Iterable[ImportStep], bar: ProgressBar) -> ImportStep | None:
    """The last step of an import, whose progress is drawn: bytes sent, then rows checked, then rows written."""
    last: ImportStep | None = None
    for last in steps:
        doing = "checking" if last.stage == "checked" else "importing"
        bar.update(last.rows if last.total else 0, said=f"{last.rows:,} rows", doing=doing, total=last.total)
    return last
