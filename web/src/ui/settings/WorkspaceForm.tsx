/** The form for a workspace: its name, its models, and its limits. For admins. */
import { useState } from "react";

import type { Workspace } from "@turnkeep/client";
import { changeWorkspace } from "../../effects/requests";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { Field, SelectField } from "../forms";
import { ErrorText, useSubmit, useUnsaved } from "../requestState";

const LIMITS = ["monthly_message_limit", "monthly_token_limit", "monthly_cost_limit", "stored_byte_limit", "parallel_turn_limit"] as const;
/** As the server has it. */
const NO_TITLE_MODEL = "off";
type LimitName = (typeof LIMITS)[number];
type LimitField = LimitName | `user_${LimitName}`;

interface Fields {
  readonly name: string;
  readonly model: string;
  readonly titleModel: string;
  readonly limits: Readonly<Record<LimitField, string>>;
}

export function WorkspaceForm({ workspace, onSaved }: { workspace: Workspace; onSaved: () => void }) {
  const { session } = useServices();
  const [stored, setStored] = useState(workspace);
  const [fields, setFields] = useState(() => fieldsOf(workspace));
  const { isSubmitting, error, submit, setError } = useSubmit();
  useUnsaved(JSON.stringify(fields) !== JSON.stringify(fieldsOf(stored)));
  const save = async () => {
    const limits = changedLimits(stored, fields.limits);
    const raised = LIMITS.find((name) => isRaised(stored[name], limits[name]));
    if (raised) return setError(words.settings.limits.raised(words.settings.limits.names[raised]));
    await submit(async () => {
      const saved = await changeWorkspace(workspace.id, { name: fields.name.trim(), model: fields.model || null, title_model: fields.titleModel || null, ...limits });
      setStored(saved);
      setFields(fieldsOf(saved));
      onSaved();
      void session.loadChoices();
    }, words.settings.saved);
  };
  const change = (changes: Partial<Fields>) => setFields({ ...fields, ...changes });
  const setLimit = (name: LimitField, text: string) => change({ limits: { ...fields.limits, [name]: text } });
  return (
    <form
      className="card"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <h2>{words.settings.workspace}</h2>
      <Field label={words.settings.workspaceName} value={fields.name} onChange={(name) => change({ name })} isRequired />
      <SelectField label={words.settings.workspaceModel} value={fields.model} onChange={(model) => change({ model })}>
        <option value="">{words.settings.serverModel}</option>
        <ModelOptions chosen={stored.model} />
      </SelectField>
      <SelectField label={words.settings.titleModel} value={fields.titleModel} onChange={(titleModel) => change({ titleModel })}>
        <option value="">{words.settings.serverModel}</option>
        <option value={NO_TITLE_MODEL}>{words.settings.noTitleModel}</option>
        <ModelOptions chosen={stored.title_model === NO_TITLE_MODEL ? null : stored.title_model} />
      </SelectField>
      <LimitFields prefix="" title={words.settings.limits.ofWorkspace} hint={words.settings.limits.ofWorkspaceHint} limits={fields.limits} onChange={setLimit} />
      <LimitFields prefix="user_" title={words.settings.limits.ofUser} hint={words.settings.limits.ofUserHint} limits={fields.limits} onChange={setLimit} />
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="submit" className="button is-main" disabled={isSubmitting}>
          {isSubmitting ? words.saving : words.save}
        </button>
      </div>
    </form>
  );
}

/** The models of the server, and the one that is chosen, even if the server does not have it any more. */
function ModelOptions({ chosen }: { chosen: string | null | undefined }) {
  const models = useSelect((state) => state.models);
  return [...new Set([...models.map((one) => one.id), ...(chosen ? [chosen] : [])])].map((one) => (
    <option key={one} value={one}>
      {one}
    </option>
  ));
}

interface LimitFieldsProps {
  prefix: "" | "user_";
  title: string;
  hint: string;
  limits: Fields["limits"];
  onChange: (name: LimitField, text: string) => void;
}

function LimitFields({ prefix, title, hint, limits, onChange }: LimitFieldsProps) {
  return (
    <fieldset className="group is-limits">
      <legend>{title}</legend>
      <p className="faint">{hint}</p>
      <div className="field-row">
        {LIMITS.map((name) => (
          <Field
            key={name}
            label={words.settings.limits.names[name]}
            type="number"
            step={name === "monthly_cost_limit" || name === "stored_byte_limit" ? "any" : 1}
            value={limits[`${prefix}${name}`]}
            onChange={(text) => onChange(`${prefix}${name}`, text)}
          />
        ))}
      </div>
    </fieldset>
  );
}

const fieldNames: readonly LimitField[] = [...LIMITS, ...LIMITS.map((name) => `user_${name}` as const)];

function fieldsOf(workspace: Workspace): Fields {
  const limits = Object.fromEntries(fieldNames.map((name) => [name, limitAsText(name, workspace[name])])) as Record<LimitField, string>;
  return { name: workspace.name, model: workspace.model ?? "", titleModel: workspace.title_model ?? "", limits };
}

/** The limits whose text was changed. The others may have been changed elsewhere meanwhile, and stay as they are. */
function changedLimits(stored: Workspace, texts: Fields["limits"]): Partial<Record<LimitField, number | null>> {
  const changed = fieldNames.filter((name) => texts[name].trim() !== limitAsText(name, stored[name]));
  return Object.fromEntries(changed.map((name) => [name, limitFromText(texts[name], unitOf(name))]));
}

/** An admin may lower a limit of the workspace. A service key of the whole org may also raise it or take it away. */
const isRaised = (before: number | null | undefined, after: number | null | undefined): boolean => typeof before === "number" && after !== undefined && (after === null || after > before);

const MEGABYTE = 1024 * 1024;
const unitOf = (name: LimitField): number => (name.endsWith("stored_byte_limit") ? MEGABYTE : 1);

/** Megabytes are rounded: a number of bytes has too many digits. What is not changed is not sent, so nothing is lost. */
const limitAsText = (name: LimitField, value: number | null | undefined): string =>
  typeof value !== "number" ? "" : String(unitOf(name) === 1 ? value : Number((value / MEGABYTE).toPrecision(6)));

/** null, no limit, for an empty text. `unit` is how many of what the server counts one of the text is. */
export const limitFromText = (text: string, unit = 1): number | null => (text.trim() === "" ? null : unit === 1 ? Number(text) : Math.round(Number(text) * unit));
