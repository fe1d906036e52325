/** The usage of this month, and the limits of the workspace. */
import { useEffect, useState } from "react";

import type { Workspace } from "@turnkeep/client";
import { changeWorkspace, usage, workspaces } from "../../effects/requests";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { Field, SelectField } from "../forms";
import { ErrorText, LoadStatus, useLoaded, useSubmit, useUnsaved } from "../requestState";

export function UsageSection({ isAdmin }: { isAdmin: boolean }) {
  const month = useLoaded(usage);
  const found = useLoaded(workspaces);
  if (!month.value) return <LoadStatus error={month.error} onRetry={month.reload} />;
  const { messages, by_source: by, input_tokens: read, output_tokens: written, limit } = month.value;
  const own = found.value?.data[0];
  return (
    <>
      <section className="card">
        <h2>{words.settings.usageMonth(monthInWords(month.value.month))}</h2>
        <dl className="figures">
          <div>
            <dt>{words.settings.messages}</dt>
            <dd>
              {messages.toLocaleString("en")} <small>{limit === null || limit === undefined ? words.settings.noLimit : words.settings.ofLimit(limit)}</small>
            </dd>
          </div>
          <div>
            <dt>{words.settings.inputTokens}</dt>
            <dd>{read.toLocaleString("en")}</dd>
          </div>
          <div>
            <dt>{words.settings.outputTokens}</dt>
            <dd>{written.toLocaleString("en")}</dd>
          </div>
        </dl>
        {limit !== null && limit !== undefined && <meter min={0} max={Math.max(limit, 1)} high={limit * 0.85} value={messages} aria-label={words.settings.messages} />}
        <p className="faint">
          {by.ui.toLocaleString("en")} {words.settings.fromPage}, {by.api.toLocaleString("en")} {words.settings.fromApi}
        </p>
      </section>
      {own && isAdmin && <Limits key={own.id} workspace={own} onSaved={found.reload} />}
    </>
  );
}

function Limits({ workspace, onSaved }: { workspace: Workspace; onSaved: () => void }) {
  const { session } = useServices();
  const models = useSelect((state) => state.models);
  const [name, setName] = useState(workspace.name);
  const [model, setModel] = useState(workspace.model ?? "");
  const [all, setAll] = useState(limitAsText(workspace.monthly_message_limit));
  const [each, setEach] = useState(limitAsText(workspace.user_monthly_message_limit));
  const { isSubmitting, error, submit } = useSubmit();
  const shown = [name, model, all, each].join("\n");
  const [saved, setSaved] = useState(shown);
  useUnsaved(shown !== saved);
  useEffect(() => setName(workspace.name), [workspace.name]);
  const save = () =>
    submit(async () => {
      await changeWorkspace(workspace.id, {
        name: name.trim(),
        model: model || null,
        monthly_message_limit: limitFromText(all),
        user_monthly_message_limit: limitFromText(each),
      });
      setName(name.trim());
      setSaved([name.trim(), model, all, each].join("\n"));
      onSaved();
      void session.loadChoices();
    }, words.settings.saved);
  return (
    <form
      className="card"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <h2>{words.settings.workspace}</h2>
      <Field label={words.settings.workspaceName} value={name} onChange={setName} isRequired />
      <SelectField label={words.settings.workspaceModel} value={model} onChange={setModel}>
        <option value="">{words.settings.serverModel}</option>
        {[...new Set([...models.map((one) => one.id), ...(workspace.model ? [workspace.model] : [])])].map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </SelectField>
      <div className="field-row">
        <Field label={words.settings.workspaceLimit} hint={words.settings.limitHint} type="number" value={all} onChange={setAll} />
        <Field label={words.settings.userLimit} hint={words.settings.limitHint} type="number" value={each} onChange={setEach} />
      </div>
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="submit" className="button is-main" disabled={isSubmitting}>
          {isSubmitting ? words.saving : words.save}
        </button>
      </div>
    </form>
  );
}

const limitAsText = (value: number | null): string => (value === null ? "" : String(value));
export const limitFromText = (text: string): number | null => (text.trim() === "" ? null : Number(text));

function monthInWords(month: string): string {
  const [year, number] = month.split("-").map(Number);
  return new Date(year ?? 0, (number ?? 1) - 1).toLocaleDateString("en", { month: "long", year: "numeric" });
}
