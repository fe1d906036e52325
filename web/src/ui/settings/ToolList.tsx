/** A list of tools to choose from: what each does, whether the agent may use it, and whether a person is asked before. */
import { useId } from "react";

import { words } from "../../words";

export interface ListedTool {
  readonly name: string;
  readonly description: string;
}

interface Props {
  label: string;
  hint?: string | undefined;
  tools: readonly ListedTool[];
  isUsed: (name: string) => boolean;
  asks: (name: string) => boolean;
  /** Null if all of them are used. */
  onUse: ((name: string, isUsed: boolean) => void) | null;
  onAsk: (name: string, asks: boolean) => void;
}

export function ToolList({ label, hint, tools, isUsed, asks, onUse, onAsk }: Props) {
  return (
    <fieldset className="group is-tools">
      <legend>{label}</legend>
      {hint && <p className="faint">{hint}</p>}
      <ul className="tools">
        {tools.map((tool) => (
          <ToolRow key={tool.name} tool={tool} isUsed={isUsed(tool.name)} asks={asks(tool.name)} onUse={onUse} onAsk={onAsk} />
        ))}
      </ul>
    </fieldset>
  );
}

function ToolRow({ tool: { name, description }, isUsed, asks, onUse, onAsk }: Pick<Props, "onUse" | "onAsk"> & { tool: ListedTool; isUsed: boolean; asks: boolean }) {
  const id = useId();
  return (
    <li className={isUsed ? "tool-row is-used" : "tool-row"}>
      {onUse && <input id={id} type="checkbox" checked={isUsed} onChange={(event) => onUse(name, event.target.checked)} aria-describedby={description ? `${id}-what` : undefined} />}
      <div className="tool-text">
        {onUse ? (
          <label htmlFor={id} className="tool-name">
            {name}
          </label>
        ) : (
          <span className="tool-name">{name}</span>
        )}
        {description && (
          <p id={`${id}-what`} className="faint tool-what" title={description}>
            {description}
          </p>
        )}
        {isUsed && (
          <label className="tool-asks">
            <input type="checkbox" checked={asks} onChange={(event) => onAsk(name, event.target.checked)} aria-label={words.settings.asksNamed(name)} />
            {words.settings.asksFirst}
          </label>
        )}
      </div>
    </li>
  );
}
