/** Tables: rows that agents search; made from CSV files by admins, looked through here by everybody. */
import { useEffect, useRef } from "react";

import { deleteTable, importRows, importTable, tables } from "../../effects/requests";
import type { Place, Route } from "../../state/route";
import { words } from "../../words";
import { BackLink } from "../reading/parts";
import { TableRows } from "../reading/TableRows";
import { RouteLink } from "../RouteLink";
import { Loading, More, Refusal, Sure, useListed, useTrying } from "./parts";

const ALL: Route = { page: "settings", section: "tables" };

export function Tables({ isAdmin, place }: { isAdmin: boolean; place: Place | undefined }) {
  const found = useListed(tables);
  const { isTrying, refusal, attempt } = useTrying();
  const opened = place?.kind === "table" ? place : null;
  const { reload } = found;
  // Rows may have been added to what was open.
  useEffect(() => {
    if (!opened) reload();
  }, [opened, reload]);
  if (opened)
    return (
      <>
        <Refusal text={refusal} />
        <TableRows
          id={opened.id}
          row={opened.row}
          tools={(table, again) => (
            <>
              <BackLink route={ALL} />
              {isAdmin && table && <CsvButton label={words.settings.addRows} isBusy={isTrying} onFile={(file) => void attempt(() => importRows(table.id, file)).then(again)} />}
            </>
          )}
        />
      </>
    );
  if (!found.items) return <Loading error={found.error} onRetry={found.reload} />;
  return (
    <>
      <div className="intro">
        <p className="faint">{words.settings.tablesIntro}</p>
        {isAdmin && (
          <CsvButton
            label={words.settings.newTable}
            isBusy={isTrying}
            onFile={(file) => void attempt(() => importTable(file.name.replace(/\.csv$/i, ""), file)).then(found.reload)}
          />
        )}
      </div>
      <Refusal text={refusal} />
      {!found.items.length && <p className="faint">{words.settings.noTables}</p>}
      <ul className="items">
        {found.items.map((table) => (
          <li key={table.id} className="item">
            <div className="item-text">
              <RouteLink route={{ ...ALL, place: { kind: "table", id: table.id } }}>{table.name}</RouteLink>
              <span className="faint">
                {words.settings.rowCount(table.row_count)} · {table.columns.map((column) => column.name).join(", ")}
              </span>
            </div>
            {isAdmin && (
              <Sure
                label={words.menu.delete}
                ariaLabel={words.settings.deleteTable(table.name)}
                question={words.settings.deleteSure}
                onSure={() => void attempt(() => deleteTable(table.id)).then(found.reload)}
              />
            )}
          </li>
        ))}
      </ul>
      <More list={found} label={words.settings.moreTables} />
    </>
  );
}

function CsvButton({ label, isBusy, onFile }: { label: string; isBusy: boolean; onFile: (file: File) => void }) {
  const picker = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={picker}
        className="unseen"
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
