/** The MCP servers of an agent: connect one, sign in where it asks for it, and choose its tools. */
import { useCallback, useEffect, useRef, useState } from "react";

import type { McpTools } from "@turnkeep/client";
import { errorText } from "../../effects/notices";
import { beginMcpConnection, deleteMcpConnection, mcpConnections, mcpTools } from "../../effects/requests";
import { type AgentFields, type McpServerFields, mcpServerOf, newMcpServer } from "../../state/agentForm";
import { timeInWords, words } from "../../words";
import { useServices } from "../context";
import { Field, RemoveButton, SwitchField } from "../forms";
import { ErrorText, useSubmit } from "../requestState";
import { ToolList } from "./ToolList";

/** How a server is called while its tools are listed, if it has no name yet. */
const UNNAMED = "server";

/** How often the page looks whether the person has agreed in the other tab. */
const LOOK_MS = 1_500;

interface Props {
  agentId: string | null;
  fields: AgentFields;
  onChange: (changes: Partial<AgentFields>) => void;
}

export function McpServers({ agentId, fields, onChange }: Props) {
  const update = (at: number, changes: Partial<McpServerFields>) => onChange({ mcpServers: fields.mcpServers.map((server, place) => (place === at ? { ...server, ...changes } : server)) });
  return (
    <fieldset className="group">
      <legend>{words.settings.mcpServers}</legend>
      {fields.mcpServers.map((server, at) => (
        <div key={at} className="group-item">
          {server.kept ? (
            <p>{words.settings.mcpCommand(server.name)}</p>
          ) : (
            <>
              <Field label={words.settings.mcpName} value={server.name} onChange={(name) => update(at, { name })} isRequired />
              <Field label={words.settings.mcpUrl} type="url" value={server.url} onChange={(url) => update(at, { url })} isRequired />
              <Field label={words.settings.mcpHeaders} rows={2} isCode value={server.headers} onChange={(headers) => update(at, { headers })} />
              <ServerTools agentId={agentId} server={server} onChange={(changes) => update(at, changes)} />
            </>
          )}
          <RemoveButton name={server.name} onRemove={() => onChange({ mcpServers: fields.mcpServers.filter((_, place) => place !== at) })} />
        </div>
      ))}
      <button type="button" className="button" onClick={() => onChange({ mcpServers: [...fields.mcpServers, newMcpServer] })}>
        {words.settings.addMcpServer}
      </button>
    </fieldset>
  );
}

function ServerTools({ agentId, server, onChange }: { agentId: string | null; server: McpServerFields; onChange: (changes: Partial<McpServerFields>) => void }) {
  const [found, setFound] = useState<McpTools | null>(null);
  const { isSubmitting, error, submit, setError } = useSubmit();
  const list = useCallback(
    (changes: Partial<McpServerFields> = {}) => {
      const declared = mcpServerOf({ ...server, ...changes, name: server.name.trim() || UNNAMED });
      if (typeof declared === "string") {
        setError(declared);
        return Promise.resolve(false);
      }
      return submit(async () => setFound(await mcpTools(declared, agentId)));
    },
    [agentId, server, setError, submit],
  );
  /** The person has agreed: from now on the server is called with the tokens of the workspace. */
  const agreed = () => {
    onChange({ isAuthorized: true });
    void list({ isAuthorized: true });
  };
  const used = server.allowed;
  const listed = found?.tools ?? [];
  const asks = (name: string) => server.asksAll || server.asksFor.includes(name);
  return (
    <>
      <SwitchField label={words.settings.mcpAsks} isOn={server.asksAll} onChange={(asksAll) => onChange({ asksAll, asksFor: [] })} />
      <div className="group-foot">
        <button type="button" className="button" disabled={isSubmitting || !server.url.trim()} onClick={() => void list()}>
          {isSubmitting ? words.settings.mcpConnecting : found ? words.settings.mcpAgain : words.settings.mcpConnect}
        </button>
      </div>
      <div role="status">
        {found && !found.problem && <p className="faint">{words.settings.mcpTools(listed.length)}</p>}
        {!found && !!used && <p className="faint">{words.settings.mcpSomeTools(used.join(", "))}</p>}
      </div>
      <ErrorText text={error} />
      {found?.problem && !found.issuer && <ErrorText text={found.problem} />}
      {found?.issuer && <Authorization url={server.url.trim()} found={found} onAgreed={agreed} />}
      {found?.connection?.status === "connected" && !found.issuer && <Connected connection={found.connection} onRemoved={() => void list()} />}
      {listed.length > 0 && (
        <>
          <SwitchField label={words.settings.mcpAllTools} hint={words.settings.mcpAllToolsHint} isOn={used === null} onChange={(isAll) => onChange({ allowed: isAll ? null : listed.map((tool) => tool.name) })} />
          <ToolList
            label={words.settings.mcpToolsOf(server.name)}
            tools={listed}
            isUsed={(name) => used === null || used.includes(name)}
            asks={asks}
            onUse={used === null ? null : (name, isUsed) => onChange({ allowed: isUsed ? [...used, name] : used.filter((one) => one !== name) })}
            onAsk={(name, isAsked) => {
              const before = server.asksAll ? listed.map((tool) => tool.name) : server.asksFor;
              onChange({ asksAll: false, asksFor: isAsked ? [...before, name] : before.filter((one) => one !== name) });
            }}
          />
        </>
      )}
    </>
  );
}

/** The server asks for authorization: a link leads to the authorization server, and the page waits for the person to come back. */
function Authorization({ url, found, onAgreed }: { url: string; found: McpTools; onAgreed: () => void }) {
  const { session } = useServices();
  const { isSubmitting, error, submit } = useSubmit();
  const [clientId, setClientId] = useState("");
  const [clientSecret, setClientSecret] = useState("");
  const [address, setAddress] = useState<string | null>(null);
  const [waitsFor, setWaitsFor] = useState<{ id: string; connectedAt: number | null } | null>(null);
  const [lookError, setLookError] = useState<string | null>(null);
  const done = useRef(onAgreed);
  done.current = onAgreed;
  const begin = () =>
    submit(async () => {
      const begun = await beginMcpConnection({ url, ...(clientId.trim() ? { client_id: clientId.trim() } : {}), ...(clientSecret.trim() ? { client_secret: clientSecret.trim() } : {}) });
      setAddress(begun.authorization_url);
      setWaitsFor({ id: begun.connection.id, connectedAt: begun.connection.connected_at });
    });
  useEffect(() => {
    if (!waitsFor) return undefined;
    let timer: ReturnType<typeof setTimeout>;
    let isOver = false;
    const look = async () => {
      try {
        const page = await mcpConnections();
        const now = page.data.find((one) => one.id === waitsFor.id);
        setLookError(null);
        if (!isOver && now?.status === "connected" && now.connected_at !== waitsFor.connectedAt) {
          setWaitsFor(null);
          done.current();
          return;
        }
      } catch (reason) {
        if (session.hasEnded(reason)) return;
        setLookError(errorText(reason));
      }
      if (!isOver) timer = setTimeout(() => void look(), LOOK_MS);
    };
    timer = setTimeout(() => void look(), LOOK_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [waitsFor, session]);
  const issuer = hostOf(found.issuer ?? "");
  return (
    <div className="authorization">
      <p>{words.settings.mcpAsksForSignIn(issuer)}</p>
      <p className="faint">{words.settings.mcpShared}</p>
      {!found.can_register && (
        <>
          <p className="faint">{words.settings.mcpRegister(issuer, found.redirect_uri)}</p>
          <div className="field-row">
            <Field label={words.settings.mcpClientId} value={clientId} onChange={setClientId} />
            <Field label={words.settings.mcpClientSecret} value={clientSecret} onChange={setClientSecret} />
          </div>
        </>
      )}
      <ErrorText text={error ?? lookError} />
      {address ? (
        <>
          <a className="button is-main is-link" href={address} target="_blank" rel="noopener noreferrer">
            {words.settings.mcpContinue(issuer)}
          </a>
          <p role="status" className="faint">
            {words.settings.mcpWaiting}
          </p>
        </>
      ) : (
        <button type="button" className="button is-main" disabled={isSubmitting || (!found.can_register && !clientId.trim())} onClick={() => void begin()}>
          {isSubmitting ? words.settings.mcpConnecting : words.settings.mcpSignIn}
        </button>
      )}
    </div>
  );
}

function Connected({ connection, onRemoved }: { connection: NonNullable<McpTools["connection"]>; onRemoved: () => void }) {
  const { isSubmitting, error, submit } = useSubmit();
  const name = connection.user ? (connection.user.name ?? connection.user.external_id) : null;
  return (
    <div className="authorization">
      <p className="faint">{words.settings.mcpConnected(hostOf(connection.issuer), name, timeInWords(connection.connected_at ?? connection.created_at))}</p>
      <ErrorText text={error} />
      <button
        type="button"
        className="button"
        disabled={isSubmitting}
        onClick={() =>
          void submit(() => deleteMcpConnection(connection.id)).then((isDone) => {
            if (isDone) onRemoved();
          })
        }
      >
        {words.settings.mcpDisconnect}
      </button>
    </div>
  );
}

function hostOf(address: string): string {
  try {
    return new URL(address).host;
  } catch {
    return address;
  }
}
