/** The usage of this month, the dashboard of usage, and the limits of the workspace. */
import { useState } from "react";

import { usage, workspaces } from "../../effects/requests";
import { costInWords, countInWords, monthInWords, words } from "../../words";
import { LoadStatus, useLoaded } from "../requestState";
import { LimitList, UsageDashboard } from "./UsageDashboard";
import { WorkspaceForm } from "./WorkspaceForm";

export function UsageSection({ isAdmin }: { isAdmin: boolean }) {
  const month = useLoaded(usage);
  const found = useLoaded(workspaces);
  const [saves, setSaves] = useState(0);
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
      <UsageDashboard isAdmin={isAdmin} thisMonth={month.value.month} saves={saves} />
      {own && isAdmin && (
        <WorkspaceForm
          key={own.id}
          workspace={own}
          onSaved={() => {
            month.reload();
            setSaves(saves + 1);
          }}
        />
      )}
    </>
  );
}
