/** The form of one agent: instructions, model, tools, MCP servers, skills, sandbox and environment. */
import { lazy, Suspense, useCallback, useId, useMemo, useRef, useState } from "react";

import type { Agent, Skill } from "@turnkeep/client";
import { errorText } from "../../effects/notices";
import { createAgent, nativeTools, replaceAgent, rotateToolSecret } from "../../effects/requests";
import { readSkillFolder, readSkillZip } from "../../effects/skills";
import { type AgentFields, BOX_TOOLS, fieldsOf, newHttpTool, specOf } from "../../state/agentForm";
import { sizeInWords, words } from "../../words";
import { Avatar } from "../Avatar";
import { useSelect, useServices } from "../context";
import { Field, RemoveButton, SelectField, SwitchField } from "../forms";
import { ErrorText, useLoadedList, useSubmit, useUnsaved } from "../requestState";
import { McpServers } from "./McpServers";
import { SandboxImageField } from "./SandboxImages";
import { ToolList } from "./ToolList";

const MAX_PICTURE_BYTES = 2_000_000;
const PICTURE_TYPES = "image/png,image/jpeg,image/gif,image/webp";

const AgentTrial = lazy(() => import("./AgentTrial").then((module) => ({ default: module.AgentTrial })));

export function AgentForm({ agent, onDone }: { agent: Agent | null; onDone: () => void }) {
  const { notices } = useServices();
  const models = useSelect((state) => state.models);
  const [fields, setFields] = useState<AgentFields>(() => fieldsOf(agent));
  const { isSubmitting, error, submit, setError } = useSubmit();
  const leave = useUnsaved(useMemo(() => JSON.stringify(fieldsOf(agent)) !== JSON.stringify(fields), [agent, fields]));
  const [isTried, setIsTried] = useState(false);
  const closeTrial = useCallback(() => setIsTried(false), []);
  const change = (changes: Partial<AgentFields>) => setFields((before) => ({ ...before, ...changes }));
  const save = async () => {
    const spec = specOf(fields);
    if (typeof spec === "string") return setError(spec);
    const saved = await submit(async () => {
      const { warnings } = await (agent ? replaceAgent(agent.id, spec) : createAgent(spec));
      notices.show(warnings?.length ? words.settings.savedBut(warnings.join(" ")) : words.settings.saved, warnings?.length ? "error" : "info");
    });
    if (saved) onDone();
  };
  const names = [...new Set([...models.map((one) => one.id), ...(fields.model ? [fields.model] : [])])];
  return (
    <div className={isTried ? "agent-editor has-trial" : "agent-editor"}>
      <form
        className="card"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
        }}
      >
        <div className="card-head">
          <h2>{agent ? words.settings.editAgent(agent.name) : words.settings.newAgent}</h2>
          {!isTried && (
            <button type="button" className="button" onClick={() => setIsTried(true)}>
              {words.settings.trial}
            </button>
          )}
        </div>
        <Field label={words.settings.agentName} value={fields.name} onChange={(name) => change({ name })} isRequired />
        <AvatarField name={fields.name} avatar={fields.avatar} onChange={(avatar) => change({ avatar })} />
        <Field label={words.settings.agentDescription} hint={words.settings.agentDescriptionHint} value={fields.description} onChange={(description) => change({ description })} />
        <Field label={words.settings.agentStarters} hint={words.settings.agentStartersHint} rows={3} value={fields.starters} onChange={(starters) => change({ starters })} />
        <Field label={words.settings.agentInstructions} hint={words.settings.agentInstructionsHint} rows={7} value={fields.instructions} onChange={(instructions) => change({ instructions })} />
        <SelectField label={words.settings.agentModel} value={fields.model} onChange={(model) => change({ model })}>
          <option value="">{words.settings.serverModel}</option>
          {names.map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </SelectField>
        <NativeTools fields={fields} onChange={change} />
        <SelectField label={words.settings.approvers} value={fields.approvers} onChange={(approvers) => change({ approvers: approvers as AgentFields["approvers"] })}>
          {(["author", "admin", "both"] as const).map((one) => (
            <option key={one} value={one}>
              {words.settings.approverNames[one]}
            </option>
          ))}
        </SelectField>
        <HttpTools fields={fields} onChange={change} />
        <McpServers agentId={agent?.id ?? null} fields={fields} onChange={change} />
        <Skills skills={fields.skills} onChange={(skills) => change({ skills })} />
        <SwitchField label={words.settings.sandbox} hint={words.settings.sandboxHint} isOn={fields.sandbox} onChange={(sandbox) => change({ sandbox })} />
        {fields.sandbox && (
          <>
            <ToolList
              label={words.settings.boxTools}
              hint={words.settings.boxToolsHint}
              tools={BOX_TOOLS.map((name) => ({ name, description: words.settings.boxToolNames[name] }))}
              isUsed={() => true}
              asks={(name) => fields.boxAsks.some((one) => one === name)}
              onUse={null}
              onAsk={(name, asks) => change({ boxAsks: BOX_TOOLS.filter((one) => (one === name ? asks : fields.boxAsks.includes(one))) })}
            />
            <SandboxImageField environment={fields.environmentRest} onChange={(environmentRest) => change({ environmentRest })} />
            <Field label={words.settings.variables} rows={3} isCode value={fields.variables} onChange={(variables) => change({ variables })} />
            <Field label={words.settings.setupScript} rows={4} isCode value={fields.setupScript} onChange={(setupScript) => change({ setupScript })} />
          </>
        )}
        {agent && <ToolSecret agentId={agent.id} />}
        <ErrorText text={error} />
        <div className="form-foot">
          <button type="button" className="button" onClick={() => leave(onDone)}>
            {words.cancel}
          </button>
          <button type="submit" className="button is-main" disabled={isSubmitting || !fields.name.trim()}>
            {isSubmitting ? words.saving : words.save}
          </button>
        </div>
      </form>
      {isTried && (
        <Suspense fallback={<p className="faint">{words.settings.loading}</p>}>
          <AgentTrial agentId={agent?.id ?? null} spec={() => specOf(fields)} starters={lines(fields.starters)} onClose={closeTrial} />
        </Suspense>
      )}
    </div>
  );
}

const lines = (text: string): string[] => [...new Set(text.split("\n").map((line) => line.trim()).filter(Boolean))];

/** The tools of the server, each with what it does. Those that the agent names and the server does not have any more are shown too. */
function NativeTools({ fields, onChange }: ListProps) {
  const found = useLoadedList(nativeTools);
  if (!found.items) return found.error === null ? <p className="faint">{words.settings.loading}</p> : <ErrorText text={found.error} />;
  const known = found.items.map(({ name, description }) => ({ name, description }));
  const gone = fields.tools.filter((name) => !known.some((tool) => tool.name === name)).map((name) => ({ name, description: words.settings.toolGone }));
  if (!known.length && !gone.length) return null;
  return (
    <ToolList
      label={words.settings.agentTools}
      hint={words.settings.agentToolsHint}
      tools={[...gone, ...known]}
      isUsed={(name) => fields.tools.includes(name)}
      asks={(name) => fields.asksFor.includes(name)}
      onUse={(name, isUsed) => onChange({ tools: isUsed ? [...fields.tools, name] : fields.tools.filter((one) => one !== name), asksFor: isUsed ? fields.asksFor : fields.asksFor.filter((one) => one !== name) })}
      onAsk={(name, asks) => onChange({ asksFor: asks ? [...fields.asksFor, name] : fields.asksFor.filter((one) => one !== name) })}
    />
  );
}

/** Makes a new secret for the signatures of the agent's tool calls, and shows it once. */
function ToolSecret({ agentId }: { agentId: string }) {
  const [secret, setSecret] = useState<string | null>(null);
  const { isSubmitting, error, submit } = useSubmit();
  const rotate = () => submit(async () => setSecret((await rotateToolSecret(agentId)).tool_secret));
  return (
    <fieldset className="group">
      <legend>{words.settings.toolSecret}</legend>
      <p className="faint">{words.settings.toolSecretHint}</p>
      {secret && (
        <p role="status">
          <code>{secret}</code>
        </p>
      )}
      <ErrorText text={error} />
      <button type="button" className="button" disabled={isSubmitting} onClick={() => void rotate()}>
        {words.settings.newToolSecret}
      </button>
    </fieldset>
  );
}

interface ListProps {
  fields: AgentFields;
  onChange: (changes: Partial<AgentFields>) => void;
}

function HttpTools({ fields, onChange }: ListProps) {
  const update = (at: number, changes: Partial<AgentFields["httpTools"][number]>) =>
    onChange({ httpTools: fields.httpTools.map((tool, place) => (place === at ? { ...tool, ...changes } : tool)) });
  return (
    <fieldset className="group">
      <legend>{words.settings.httpTools}</legend>
      {fields.httpTools.map((tool, at) => (
        <div key={at} className="group-item">
          <div className="field-row">
            <Field label={words.settings.toolName} value={tool.name} onChange={(name) => update(at, { name })} isRequired />
            <SelectField label={words.settings.toolMethod} value={tool.method} onChange={(method) => update(at, { method: method as typeof tool.method })}>
              {["GET", "POST", "PUT", "PATCH", "DELETE"].map((method) => (
                <option key={method}>{method}</option>
              ))}
            </SelectField>
          </div>
          <Field label={words.settings.toolUrl} type="url" value={tool.url} onChange={(url) => update(at, { url })} isRequired />
          <Field label={words.settings.toolDescription} value={tool.description} onChange={(description) => update(at, { description })} />
          <Field label={words.settings.toolSchema} rows={4} isCode value={tool.schema} onChange={(schema) => update(at, { schema })} />
          <Field label={words.settings.mcpHeaders} rows={2} isCode value={tool.headers} onChange={(headers) => update(at, { headers })} />
          <SwitchField label={words.settings.toolIdempotent} isOn={tool.idempotent} onChange={(idempotent) => update(at, { idempotent })} />
          <SwitchField label={words.settings.toolAsks} isOn={tool.asks} onChange={(asks) => update(at, { asks })} />
          <RemoveButton name={tool.name} onRemove={() => onChange({ httpTools: fields.httpTools.filter((_, place) => place !== at) })} />
        </div>
      ))}
      <button type="button" className="button" onClick={() => onChange({ httpTools: [...fields.httpTools, newHttpTool] })}>
        {words.settings.addHttpTool}
      </button>
    </fieldset>
  );
}

function Skills({ skills, onChange }: { skills: readonly Skill[]; onChange: (skills: readonly Skill[]) => void }) {
  const folder = useRef<HTMLInputElement>(null);
  const zip = useRef<HTMLInputElement>(null);
  const [error, setRefusal] = useState<string | null>(null);
  const add = async (read: () => Promise<Skill | string>) => {
    setRefusal(null);
    try {
      const skill = await read();
      if (typeof skill === "string") setRefusal(skill);
      else onChange([...skills.filter((one) => one.name !== skill.name), skill]);
    } catch (error) {
      setRefusal(errorText(error));
    }
  };
  return (
    <fieldset className="group">
      <legend>{words.settings.skills}</legend>
      <p className="faint">{words.settings.skillsHint}</p>
      {skills.map((skill) => (
        <div key={skill.name} className="group-item is-line">
          <strong>{skill.name}</strong>
          <span className="faint">{words.settings.skillFiles(Object.keys(skill.files).length)}</span>
          <RemoveButton name={skill.name} onRemove={() => onChange(skills.filter((one) => one !== skill))} />
        </div>
      ))}
      <ErrorText text={error} />
      <div className="group-foot">
        <input
          ref={folder}
          className="visually-hidden"
          type="file"
          multiple
          tabIndex={-1}
          aria-hidden="true"
          data-kind="skill-folder"
          {...{ webkitdirectory: "" }}
          onChange={(event) => {
            const files = [...(event.target.files ?? [])];
            event.target.value = "";
            if (files.length) void add(() => readSkillFolder(files));
          }}
        />
        <input
          ref={zip}
          className="visually-hidden"
          type="file"
          accept=".zip,application/zip"
          tabIndex={-1}
          aria-hidden="true"
          data-kind="skill-zip"
          onChange={(event) => {
            const file = event.target.files?.[0];
            event.target.value = "";
            if (file) void add(() => readSkillZip(file));
          }}
        />
        <button type="button" className="button" onClick={() => folder.current?.click()}>
          {words.settings.addSkillFolder}
        </button>
        <button type="button" className="button" onClick={() => zip.current?.click()}>
          {words.settings.addSkillZip}
        </button>
      </div>
    </fieldset>
  );
}

/** An emoji that is typed, or a picture that is chosen. The server makes the picture small. */
function AvatarField({ name, avatar, onChange }: { name: string; avatar: string; onChange: (avatar: string) => void }) {
  const id = useId();
  const picker = useRef<HTMLInputElement>(null);
  const [error, setError] = useState<string | null>(null);
  const isPicture = avatar.startsWith("data:");
  const choose = async (file: File) => {
    if (!PICTURE_TYPES.split(",").includes(file.type)) return setError(words.settings.avatarType);
    if (file.size > MAX_PICTURE_BYTES) return setError(words.settings.avatarSize(sizeInWords(MAX_PICTURE_BYTES)));
    setError(null);
    onChange(await dataAddress(file));
  };
  return (
    <div className="field">
      <label htmlFor={id}>{words.settings.avatar}</label>
      <div className="avatar-field">
        <Avatar agent={{ name, avatar }} isLarge />
        <input id={id} className="avatar-emoji" value={isPicture ? "" : avatar} disabled={isPicture} placeholder={words.settings.avatarEmoji} maxLength={32} autoComplete="off" onChange={(event) => onChange(event.target.value.trim())} />
        <input
          ref={picker}
          className="visually-hidden"
          type="file"
          accept={PICTURE_TYPES}
          tabIndex={-1}
          aria-hidden="true"
          data-kind="avatar"
          onChange={(event) => {
            const file = event.target.files?.[0];
            event.target.value = "";
            if (file) void choose(file);
          }}
        />
        <button type="button" className="button" onClick={() => picker.current?.click()}>
          {words.settings.avatarPicture}
        </button>
        {avatar && (
          <button type="button" className="link" onClick={() => onChange("")}>
            {words.settings.avatarNone}
          </button>
        )}
      </div>
      <ErrorText text={error} />
    </div>
  );
}

function dataAddress(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error ?? new Error(words.failed));
    reader.readAsDataURL(file);
  });
}
