/** Agents: list, create, edit, delete. */
import { useState } from "react";

import type { Agent } from "@turnkeep/client";
import { agents, deleteAgent } from "../../effects/requests";
import { words } from "../../words";
import { useServices } from "../context";
import { Avatar } from "../Avatar";
import { ConfirmButton } from "../forms";
import { Icon } from "../Icon";
import { RouteLink } from "../RouteLink";
import { ErrorText, LoadStatus, useLoaded, useSubmit } from "../requestState";
import { AgentForm } from "./AgentForm";

const load = () => agents();

export function Agents({ isAdmin }: { isAdmin: boolean }) {
  const { session } = useServices();
  const found = useLoaded(load);
  const [edited, setEdited] = useState<Agent | "new" | null>(null);
  const { error, submit } = useSubmit();
  const changed = () => {
    setEdited(null);
    found.reload();
    void session.loadChoices();
  };
  if (edited !== null) return <AgentForm agent={edited === "new" ? null : edited} onDone={changed} />;
  if (!found.value) return <LoadStatus error={found.error} onRetry={found.reload} />;
  return (
    <>
      <div className="intro">
        <p className="faint">{words.settings.agentsIntro}</p>
        {isAdmin && (
          <button type="button" className="button is-main" onClick={() => setEdited("new")}>
            {words.settings.newAgent}
          </button>
        )}
      </div>
      <ErrorText text={error} />
      {!found.value.data.length && <p className="faint">{words.settings.noAgents}</p>}
      <ul className="items">
        {found.value.data.map((agent) => (
          <li key={agent.id} className="item">
            <Avatar agent={agent} />
            <div className="item-text">
              <strong dir="auto">{agent.name}</strong>
              <span className="faint" dir="auto">
                {agent.description || summary(agent)}
              </span>
            </div>
            <RouteLink className="button" route={{ page: "chat", conversationId: null, agentId: agent.id }} aria-label={words.settings.chatWith(agent.name)}>
              {words.settings.chat}
            </RouteLink>
            {isAdmin && (
              <>
                <button type="button" className="button" onClick={() => setEdited(agent)} aria-label={words.settings.editAgent(agent.name)}>
                  <Icon name="pencil" />
                </button>
                <ConfirmButton
                  label={words.menu.delete}
                  ariaLabel={words.settings.deleteAgent(agent.name)}
                  question={words.settings.deleteAgentSure}
                  onConfirm={() => void submit(() => deleteAgent(agent.id)).then(changed)}
                />
              </>
            )}
          </li>
        ))}
      </ul>
    </>
  );
}

/** A summary in one line. The server tells members only the model. */
function summary({ model, tools = [], mcp_servers = [], instructions = "" }: Agent): string {
  const names = [...tools.map((tool) => (typeof tool === "string" ? tool : String(tool["name"]))), ...mcp_servers.map((server) => String(server["name"]))];
  return [model, names.join(", "), instructions.split("\n")[0]?.slice(0, 140)].filter(Boolean).join(" · ");
}
