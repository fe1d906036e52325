/** Forms of a table for admins: one row, and the table itself with its columns. */
import { useMemo, useState } from "react";

import type { Table, TableRow } from "@turnkeep/client";
import { addRow, changeTable, deleteRow, replaceRow } from "../../effects/requests";
import { words } from "../../words";
import { ConfirmButton, Field, RemoveButton, SelectField } from "../forms";
import { ErrorText, useSubmit, useUnsaved } from "../requestState";

const TYPES = ["text", "number", "date", "datetime", "boolean"] as const;
type ColumnType = (typeof TYPES)[number];

interface RowProps {
  table: Table;
  /** Null for a new row. */
  row: TableRow | null;
  onClose: () => void;
  onSaved: () => void;
}

export function RowForm({ table, row, onClose, onSaved }: RowProps) {
  const before = useMemo(() => textsOf(table, row), [table, row]);
  const [texts, setTexts] = useState<Readonly<Record<string, string>>>(before);
  const { isSubmitting, error, submit } = useSubmit();
  const leave = useUnsaved(JSON.stringify(before) !== JSON.stringify(texts));
  const save = async () => {
    const values = Object.fromEntries(table.columns.map(({ name, type }) => [name, valueOf(texts[name] ?? "", type)]));
    if (await submit(() => (row ? replaceRow(table.id, row.row, values) : addRow(table.id, values)), words.settings.saved)) onSaved();
  };
  return (
    <form
      className="card"
      aria-label={row ? words.settings.editRow(row.row) : words.settings.newRow}
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <h2>{row ? words.settings.editRow(row.row) : words.settings.newRow}</h2>
      {table.columns.map(({ name, type }) =>
        type === "boolean" ? (
          <SelectField key={name} label={name} value={texts[name] ?? ""} onChange={(text) => setTexts({ ...texts, [name]: text })}>
            <option value="">{words.settings.noValue}</option>
            <option value="true">{words.settings.yes}</option>
            <option value="false">{words.settings.no}</option>
          </SelectField>
        ) : (
          <Field key={name} label={name} {...hintOf(type)} {...(type === "text" ? { rows: 2 } : {})} value={texts[name] ?? ""} onChange={(text) => setTexts({ ...texts, [name]: text })} />
        ),
      )}
      <ErrorText text={error} />
      <div className="form-foot">
        {row && (
          <ConfirmButton
            label={words.menu.delete}
            ariaLabel={words.settings.deleteRow(row.row)}
            question={words.settings.deleteSure}
            onConfirm={() =>
              void submit(() => deleteRow(table.id, row.row)).then((isDone) => {
                if (isDone) onSaved();
              })
            }
          />
        )}
        <button type="button" className="button" onClick={() => leave(onClose)}>
          {words.cancel}
        </button>
        <button type="submit" className="button is-main" disabled={isSubmitting}>
          {isSubmitting ? words.saving : words.save}
        </button>
      </div>
    </form>
  );
}

const hintOf = (type: string): { hint: string } | object => (type === "text" ? {} : { hint: words.settings.columnHints[type as ColumnType] });

function textsOf(table: Table, row: TableRow | null): Record<string, string> {
  const values = (row?.values ?? {}) as Record<string, unknown>;
  return Object.fromEntries(table.columns.map(({ name }) => [name, values[name] === null || values[name] === undefined ? "" : String(values[name])]));
}

/** The value to send. A text that is no number is sent as it is, and the server says what is wrong with it. */
function valueOf(text: string, type: string): string | number | boolean | null {
  if (type === "text") return text === "" ? null : text;
  const trimmed = text.trim();
  if (trimmed === "") return null;
  if (type === "boolean") return trimmed === "true";
  return type === "number" && Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
}

interface ColumnFields {
  readonly name: string;
  readonly type: ColumnType;
  /** The name that it has now; null for a new column. */
  readonly was: string | null;
}

export function TableForm({ table, onClose, onSaved }: Omit<RowProps, "row">) {
  const first = useMemo(() => ({ name: table.name, description: table.description, columns: table.columns.map((one): ColumnFields => ({ name: one.name, type: one.type as ColumnType, was: one.name })) }), [table]);
  const [fields, setFields] = useState(first);
  const { isSubmitting, error, submit } = useSubmit();
  const leave = useUnsaved(JSON.stringify(first) !== JSON.stringify(fields));
  const changeColumn = (at: number, changes: Partial<ColumnFields>) => setFields({ ...fields, columns: fields.columns.map((one, place) => (place === at ? { ...one, ...changes } : one)) });
  const save = async () => {
    const columns = fields.columns.map(({ name, type, was }) => ({ name: name.trim(), type, ...(was !== null && was !== name.trim() ? { was } : {}) }));
    if (await submit(() => changeTable(table.id, { name: fields.name.trim(), description: fields.description, columns }), words.settings.saved)) onSaved();
  };
  return (
    <form
      className="card"
      aria-label={words.settings.editTable}
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <h2>{words.settings.editTable}</h2>
      <Field label={words.settings.tableName} value={fields.name} onChange={(name) => setFields({ ...fields, name })} isRequired />
      <Field label={words.settings.tableDescription} hint={words.settings.tableDescriptionHint} rows={2} value={fields.description} onChange={(description) => setFields({ ...fields, description })} />
      <fieldset className="group">
        <legend>{words.settings.columns}</legend>
        {table.row_count > 0 && <p className="faint">{words.settings.columnsStay}</p>}
        {fields.columns.map((column, at) => (
          <div key={at} className="group-item">
            <div className="field-row">
              <Field label={words.settings.columnName} value={column.name} onChange={(name) => changeColumn(at, { name })} isRequired />
              <SelectField label={words.settings.columnType} value={column.type} isDisabled={column.was !== null} onChange={(type) => changeColumn(at, { type: type as ColumnType })}>
                {TYPES.map((type) => (
                  <option key={type} value={type}>
                    {words.settings.columnTypes[type]}
                  </option>
                ))}
              </SelectField>
            </div>
            {(column.was === null || table.row_count === 0) && <RemoveButton name={column.name} onRemove={() => setFields({ ...fields, columns: fields.columns.filter((_, place) => place !== at) })} />}
          </div>
        ))}
        <button type="button" className="button" onClick={() => setFields({ ...fields, columns: [...fields.columns, { name: "", type: "text", was: null }] })}>
          {words.settings.addColumn}
        </button>
      </fieldset>
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="button" className="button" onClick={() => leave(onClose)}>
          {words.cancel}
        </button>
        <button type="submit" className="button is-main" disabled={isSubmitting || !fields.name.trim() || !fields.columns.length}>
          {isSubmitting ? words.saving : words.save}
        </button>
      </div>
    </form>
  );
}
