/** Fields and buttons of forms. */
import { type ReactNode, useId, useState } from "react";

import { words } from "../words";
import { Icon } from "./Icon";

interface FieldProps {
  label: string;
  hint?: string;
  value: string;
  onChange: (value: string) => void;
  rows?: number;
  isCode?: boolean;
  type?: "text" | "number" | "url";
  isRequired?: boolean;
  isDisabled?: boolean;
  /** Of a number. */
  max?: number;
  step?: number | "any";
}

export function Field({ label, hint, value, onChange, rows, isCode, type = "text", isRequired, isDisabled, max, step }: FieldProps) {
  const id = useId();
  const shared = {
    id,
    value,
    required: isRequired ?? false,
    disabled: isDisabled ?? false,
    className: isCode ? "is-code" : undefined,
    spellCheck: !isCode,
    "aria-describedby": hint ? `${id}-hint` : undefined,
    onChange: (event: { target: { value: string } }) => onChange(event.target.value),
  };
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {rows ? <textarea {...shared} rows={rows} /> : <input {...shared} type={type} {...(type === "number" ? { min: 0, max, step } : {})} autoComplete="off" />}
      {hint && (
        <p id={`${id}-hint`} className="faint">
          {hint}
        </p>
      )}
    </div>
  );
}

export function SelectField({ label, value, onChange, children, isDisabled }: { label: string; value: string; onChange: (value: string) => void; children: ReactNode; isDisabled?: boolean }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <select id={id} value={value} disabled={isDisabled ?? false} onChange={(event) => onChange(event.target.value)}>
        {children}
      </select>
    </div>
  );
}

export function SwitchField({ label, hint, isOn, onChange }: { label: string; hint?: string; isOn: boolean; onChange: (isOn: boolean) => void }) {
  const id = useId();
  return (
    <div className="field is-switch">
      <input id={id} type="checkbox" role="switch" checked={isOn} onChange={(event) => onChange(event.target.checked)} aria-describedby={hint ? `${id}-hint` : undefined} />
      <label htmlFor={id}>{label}</label>
      {hint && (
        <p id={`${id}-hint`} className="faint">
          {hint}
        </p>
      )}
    </div>
  );
}

/** A button that asks for a confirmation before it does something that cannot be undone. */
export function ConfirmButton({ label, ariaLabel, question, onConfirm }: { label: string; ariaLabel: string; question: string; onConfirm: () => void }) {
  const [isAsking, setIsAsking] = useState(false);
  if (!isAsking)
    return (
      <button type="button" className="button" onClick={() => setIsAsking(true)} aria-label={ariaLabel}>
        {label}
      </button>
    );
  return (
    <span className="confirm" role="group" aria-label={question}>
      <span>{question}</span>
      <button type="button" className="button is-danger" onClick={onConfirm} autoFocus>
        {words.settings.sure}
      </button>
      <button type="button" className="button" onClick={() => setIsAsking(false)}>
        {words.settings.notSure}
      </button>
    </span>
  );
}

/** A button that removes one of several things in a form. */
export function RemoveButton({ name, onRemove }: { name: string; onRemove: () => void }) {
  return (
    <button type="button" className="tool" onClick={onRemove} aria-label={words.settings.removeNamed(name)} title={words.remove}>
      <Icon name="trash" />
    </button>
  );
}
