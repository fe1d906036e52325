/** The usage of this month, the dashboard of usage, and the limits of the workspace. */
import { useEffect, useState } from "react";

import type { Workspace } from "@turnkeep/client";
import { changeWorkspace, usage, workspaces } from "../../effects/requests";
import { costInWords, countInWords, monthInWords, words } from "../../words";
import { useSelect, useServices } from "../context";
import { Field, SelectField } from "../forms";
import { ErrorText, LoadStatus, useLoaded, useSubmit, useUnsaved } from "../requestState";
import { LimitList, UsageDashboard } from "./UsageDashboard";

export function UsageSection({ isAdmin }: { isAdmin: boolean }) {
  const month = useLoaded(usage);
  const found = useLoaded(workspaces);
  if (!month.value) return <LoadStatus error={month.error} onRetry={month.reload} />;
  const { messages, by_source: by, input_tokens: read, output_tokens: written, limit, cost, limits } = month.value;
  const own = found.value?.data[0];
  return (
    <>
      <section className="card">
        <h2>{words.settings.usageMonth(monthInWords(month.value.month))}</h2>
        <dl className="figures">
          <div>
            <dt>{words.settings.messages}</dt>
            <dd>
              {countInWords(messages)} <small>{limit === null || limit === undefined ? words.settings.noLimit : words.settings.ofLimit(limit)}</small>
            </dd>
          </div>
          <div>
            <dt>{words.settings.inputTokens}</dt>
            <dd>{countInWords(read)}</dd>
          </div>
          <div>
            <dt>{words.settings.outputTokens}</dt>
            <dd>{countInWords(written)}</dd>
          </div>
          {typeof cost === "number" && (
            <div>
              <dt>{words.usage.cost}</dt>
              <dd>{costInWords(cost)}</dd>
            </div>
          )}
        </dl>
        <LimitList limits={limits ?? []} />
        <p className="faint">
          {countInWords(by.ui)} {words.settings.fromPage}, {countInWords(by.api)} {words.settings.fromApi}
        </p>
      </section>
      <UsageDashboard isAdmin={isAdmin} thisMonth={month.value.month} />
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
