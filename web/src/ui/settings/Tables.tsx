/** Tables, which agents search. Every member can read and export them here; admins import and change them. */
import { useEffect, useRef, useState } from "react";

import type { TableRow } from "@turnkeep/client";
import { exportTable } from "../../effects/export";
import { csvAddress, deleteTable, importRows, importTable, tables } from "../../effects/requests";
import type { KnowledgeItem, Route } from "../../state/route";
import { words } from "../../words";
import { ConfirmButton } from "../forms";
import { ErrorText, LoadStatus, MoreButton, useLoadedList, useSubmit } from "../requestState";
import { RouteLink } from "../RouteLink";
import { BackLink } from "../source/SourceHeader";
import { TableView } from "../source/TableView";
import { RowForm, TableForm } from "./TableForms";

const ALL = { page: "settings", section: "tables" } as const satisfies Route;

export function Tables({ isAdmin, item }: { isAdmin: boolean; item: KnowledgeItem | undefined }) {
  const found = useLoadedList(tables);
  const { isSubmitting, error, submit } = useSubmit();
  const opened = item?.kind === "table" ? item : null;
  const [edited, setEdited] = useState<{ tableId: string; what: TableRow | "new" | "table" } | null>(null);
  const what = edited?.tableId === opened?.id ? (edited?.what ?? null) : null;
  const { reload } = found;
  // The table that was open may have more rows now.
  useEffect(() => {
    if (!opened) reload();
  }, [opened, reload]);
  if (opened)
    return (
      <>
        <ErrorText text={error} />
        <TableView
          id={opened.id}
          row={opened.row}
          {...(isAdmin ? { onEdit: (row: TableRow) => setEdited({ tableId: opened.id, what: row }) } : {})}
          above={(table, again) => {
            const close = () => setEdited(null);
            const saved = () => {
              close();
              again();
            };
            if (what === null) return null;
            if (what === "table") return <TableForm table={table} onClose={close} onSaved={saved} />;
            const row = what === "new" ? null : what;
            return <RowForm key={row?.row ?? 0} table={table} row={row} onClose={close} onSaved={saved} />;
          }}
          tools={(table, again) => (
            <>
              <BackLink route={ALL} />
              {table && (
                <>
                  <a className="button" href={csvAddress(table.id)} download>
                    {words.settings.exportCsv}
                  </a>
                  <button type="button" className="button" disabled={isSubmitting} onClick={() => void submit(() => exportTable(table))}>
                    {words.settings.exportJson}
                  </button>
                </>
              )}
              {isAdmin && table && (
                <>
                  <button type="button" className="button" onClick={() => setEdited({ tableId: table.id, what: "table" })}>
                    {words.settings.editTable}
                  </button>
                  <button type="button" className="button" onClick={() => setEdited({ tableId: table.id, what: "new" })}>
                    {words.settings.newRow}
                  </button>
                </>
              )}
              {isAdmin && table && <CsvButton label={words.settings.addRows} isBusy={isSubmitting} onFile={(file) => void submit(() => importRows(table.id, file)).then(again)} />}
            </>
          )}
        />
      </>
    );
  if (!found.items) return <LoadStatus error={found.error} onRetry={found.reload} />;
  return (
    <>
      <div className="intro">
        <p className="faint">{words.settings.tablesIntro}</p>
        {isAdmin && (
          <CsvButton
            label={words.settings.newTable}
            isBusy={isSubmitting}
            onFile={(file) => void submit(() => importTable(file.name.replace(/\.csv$/i, ""), file)).then(found.reload)}
          />
        )}
      </div>
      <ErrorText text={error} />
      {!found.items.length && <p className="faint">{words.settings.noTables}</p>}
      <ul className="items">
        {found.items.map((table) => (
          <li key={table.id} className="item">
            <div className="item-text">
              <RouteLink route={{ ...ALL, item: { kind: "table", id: table.id } }}>{table.name}</RouteLink>
              <span className="faint">
                {words.settings.rowCount(table.row_count)} · {table.columns.map((column) => column.name).join(", ")}
              </span>
            </div>
            {isAdmin && (
              <ConfirmButton
                label={words.menu.delete}
                ariaLabel={words.settings.deleteTable(table.name)}
                question={words.settings.deleteSure}
                onConfirm={() => void submit(() => deleteTable(table.id)).then(found.reload)}
              />
            )}
          </li>
        ))}
      </ul>
      <MoreButton list={found} label={words.settings.moreTables} />
    </>
  );
}

function CsvButton({ label, isBusy, onFile }: { label: string; isBusy: boolean; onFile: (file: File) => void }) {
  const picker = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={picker}
        className="visually-hidden"
        type="file"
        accept=".csv,text/csv"
        tabIndex={-1}
        aria-hidden="true"
        data-kind="csv"
        onChange={(event) => {
          const file = event.target.files?.[0];
          event.target.value = "";
          if (file) onFile(file);
        }}
      />
      <button type="button" className="button is-main" disabled={isBusy} onClick={() => picker.current?.click()}>
        {isBusy ? words.settings.importing : label}
      </button>
    </>
  );
}
