/** Tables: rows that agents search; made from CSV files, looked through here. */
import { useCallback, useEffect, useRef, useState } from "react";

import { deleteTable, importRows, importTable, rows, tables } from "../../effects/settings";
import type { Table, TableRow } from "../../wire/types";
import { words } from "../../words";
import { Icon } from "../Icon";
import { Field, Loading, Refusal, Sure, useLoaded, useTrying } from "./parts";

export function Tables({ isAdmin }: { isAdmin: boolean }) {
  const found = useLoaded(tables);
  const [shown, setShown] = useState<Table | null>(null);
  const { isTrying, refusal, attempt } = useTrying();
  if (shown)
    return (
      <Rows
        table={shown}
        isAdmin={isAdmin}
        onBack={() => {
          setShown(null);
          found.reload();
        }}
      />
    );
  if (!found.value) return <Loading error={found.error} onRetry={found.reload} />;
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
      {!found.value.data.length && <p className="faint">{words.settings.noTables}</p>}
      <ul className="items">
        {found.value.data.map((table) => (
          <li key={table.id} className="item">
            <div className="item-text">
              <strong>{table.name}</strong>
              <span className="faint">
                {words.settings.rowCount(table.row_count)} · {table.columns.map((column) => column.name).join(", ")}
              </span>
            </div>
            <button type="button" className="button" onClick={() => setShown(table)} aria-label={words.settings.showTable(table.name)}>
              <Icon name="search" />
            </button>
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
    </>
  );
}

function Rows({ table, isAdmin, onBack }: { table: Table; isAdmin: boolean; onBack: () => void }) {
  const [query, setQuery] = useState("");
  const [cursor, setCursor] = useState<string | null>(null);
  const [shown, setShown] = useState<readonly TableRow[]>([]);
  const found = useLoaded(useCallback(() => rows(table.id, { q: query.trim(), cursor }), [table.id, query, cursor]));
  const { isTrying, refusal, attempt } = useTrying();
  useEffect(() => {
    const page = found.value;
    if (page) setShown((before) => (cursor === null ? page.data : [...before.filter((one) => !page.data.some((other) => other.row === one.row)), ...page.data]));
  }, [found.value, cursor]);
  const search = (text: string) => {
    setCursor(null);
    setQuery(text);
  };
  return (
    <>
      <div className="intro">
        <h2>{table.name}</h2>
        <div className="group-foot">
          {isAdmin && <CsvButton label={words.settings.addRows} isBusy={isTrying} onFile={(file) => void attempt(() => importRows(table.id, file)).then(found.reload)} />}
          <button type="button" className="button" onClick={onBack}>
            {words.settings.back}
          </button>
        </div>
      </div>
      <Field label={words.settings.searchRows} value={query} onChange={search} />
      <Refusal text={refusal ?? found.error} />
      {found.value && !shown.length && <p className="faint">{words.settings.noRows}</p>}
      <div className="prose">
        <div className="table" role="region" aria-label={table.name} tabIndex={0}>
          <table>
            <thead>
              <tr>
                {table.columns.map((column) => (
                  <th key={column.name} scope="col">
                    {column.name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((row) => (
                <tr key={row.row}>
                  {table.columns.map((column) => (
                    <td key={column.name}>{String((row.values as Record<string, unknown>)[column.name] ?? "")}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </div>
      {found.value?.next_cursor && (
        <button type="button" className="button" onClick={() => setCursor(found.value?.next_cursor ?? null)}>
          {words.settings.moreRows}
        </button>
      )}
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
