/** A table: its rows around the cited one, or the rows that a search finds. The cited row is marked. */
import { type ReactNode, useCallback, useEffect, useRef, useState } from "react";

import type { Table, TableRow } from "@turnkeep/client";
import { readTable, rows, rowsFrom } from "../../effects/requests";
import { words } from "../../words";
import { Field } from "../forms";
import { ErrorText, useLoaded, useSubmit } from "../requestState";
import { show } from "./citedPassage";
import { LoadProblem, SourceHeader, SourceNote } from "./SourceHeader";

/** Number of rows that are shown before the cited one. */
const ROWS_BEFORE = 10;
const ROWS_PER_LOAD = 50;
/** Number of loads without a row, for one click: the rows of whole ranges may be deleted. */
const MAX_EMPTY_LOADS = 20;

interface Props {
  id: string;
  row?: number | undefined;
  tools: (table: Table | null, reload: () => void) => ReactNode;
  /** What stands above the rows. */
  above?: (table: Table, reload: () => void) => ReactNode;
  /** Opens a row to change it. */
  onEdit?: (row: TableRow) => void;
}

export function TableView({ id, row, tools, above, onEdit }: Props) {
  const loaded = useLoaded(useCallback(() => readTable(id), [id]));
  const [query, setQuery] = useState("");
  const [changes, setChanges] = useState(0);
  const table = loaded.value?.id === id ? loaded.value : null;
  const { reload } = loaded;
  const again = useCallback(() => {
    reload();
    setChanges((count) => count + 1);
  }, [reload]);
  return (
    <>
      <SourceHeader kind="table" title={table?.name ?? null} about={table ? words.settings.rowCount(table.row_count) : null} tools={tools(table, again)} />
      {!table && <LoadProblem loaded={loaded} missing={words.source.tableGone} />}
      {table?.description && <p className="faint">{table.description}</p>}
      {table && above?.(table, again)}
      {table && <Field label={words.settings.searchRows} value={query} onChange={setQuery} />}
      {table && <Rows key={`${id}/${row}/${query.trim()}/${changes}`} table={table} query={query.trim()} row={query.trim() ? undefined : row} onEdit={onEdit} />}
    </>
  );
}

/** The rows that are loaded, and where to continue on both sides. */
interface LoadedRows {
  readonly rows: readonly TableRow[];
  /** The smallest row number that was requested. */
  readonly from: number;
  readonly next: string | null;
}

function Rows({ table, query, row, onEdit }: { table: Table; query: string; row: number | undefined; onEdit: Props["onEdit"] }) {
  const first = Math.max(1, (row ?? 1) - ROWS_BEFORE);
  const { isSubmitting, error, submit } = useSubmit();
  const [shown, setShown] = useState<LoadedRows | null>(null);
  const loaded = useLoaded(useCallback(() => (query ? rows(table.id, { q: query }) : rowsFrom(table.id, first, ROWS_PER_LOAD)), [table.id, query, first]));
  useEffect(() => {
    if (loaded.value) setShown({ rows: loaded.value.data, from: query ? 1 : first, next: loaded.value.next_cursor });
  }, [loaded.value, query, first]);

  const cited = useRef<HTMLTableRowElement>(null);
  const isDrawn = shown !== null;
  useEffect(() => {
    if (isDrawn && cited.current) show(cited.current);
  }, [isDrawn]);

  const more = (cursor: string) => async () => {
    const page = await rows(table.id, { q: query, cursor });
    setShown((before) => before && { ...before, rows: [...before.rows, ...page.data], next: page.next_cursor });
  };
  const earlier = (before: LoadedRows) => async () => {
    const found = await rowsBefore(table.id, before.from);
    setShown({ ...before, rows: [...found.rows, ...before.rows], from: found.from });
  };
  if (!shown) return loaded.error === null ? <p className="faint">{words.settings.loading}</p> : <ErrorText text={loaded.error} />;
  return (
    <>
      <ErrorText text={error} />
      {row !== undefined && !shown.rows.some((one) => one.row === row) && <SourceNote text={words.source.rowGone(row)} />}
      {!shown.rows.length && <p className="faint">{query ? words.conversations.noneFound(query) : words.settings.noRows}</p>}
      {shown.from > 1 && (
        <button type="button" className="button" disabled={isSubmitting} onClick={() => void submit(earlier(shown))}>
          {words.source.earlierRows}
        </button>
      )}
      {shown.rows.length > 0 && (
        <div className="prose">
          <div className="table is-rows" role="region" aria-label={table.name} tabIndex={0}>
            <table>
              <thead>
                <tr>
                  <th scope="col">{words.source.row}</th>
                  {table.columns.map((column) => (
                    <th key={column.name} scope="col" className={column.type === "number" ? "to-right" : undefined}>
                      {column.name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {shown.rows.map((one) => (
                  <tr key={one.row} {...(one.row === row ? { ref: cited, "data-cited": "", "aria-current": true } : {})}>
                    <th scope="row">
                      {onEdit ? (
                        <button type="button" className="link" onClick={() => onEdit(one)} aria-label={words.settings.editRow(one.row)}>
                          {one.row}
                        </button>
                      ) : (
                        one.row
                      )}
                    </th>
                    {table.columns.map((column) => (
                      <td key={column.name} className={column.type === "number" ? "to-right" : undefined}>
                        {cell((one.values as Record<string, unknown>)[column.name])}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </div>
      )}
      {shown.next && (
        <button type="button" className="button" disabled={isSubmitting} onClick={() => shown.next && void submit(more(shown.next))}>
          {words.settings.moreRows}
        </button>
      )}
    </>
  );
}

function cell(value: unknown): string {
  if (typeof value === "boolean") return value ? words.settings.yes : words.settings.no;
  return value === null || value === undefined ? "" : String(value);
}

/** The rows right before this number without a gap, and the smallest number that was requested for them. */
async function rowsBefore(tableId: string, number: number): Promise<{ rows: TableRow[]; from: number }> {
  let end = number;
  for (let tries = 0; tries < MAX_EMPTY_LOADS && end > 1; tries += 1) {
    const from = Math.max(1, end - ROWS_PER_LOAD);
    const page = await rowsFrom(tableId, from, end - from);
    const found = page.data.filter((one) => one.row < end);
    end = from;
    if (found.length) return { rows: found, from };
  }
  return { rows: [], from: end };
}
