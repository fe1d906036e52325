/** Which agent and which model answer. In a conversation the choice is the conversation's; before it, the first turn's. */
import { words } from "../../words";
import { useServices, useSelect } from "../context";

interface Props {
  threadId: string;
  isNew: boolean;
  choice: { agentId: string | null; model: string | null };
  onChoice: (choice: Props["choice"]) => void;
}

export function Choices({ threadId, isNew, choice, onChoice }: Props) {
  const { threads } = useServices();
  const agents = useSelect((state) => state.agents);
  const models = useSelect((state) => state.models);
  const fallback = useSelect((state) => state.me?.model ?? "");
  const conversation = useSelect((state) => state.threads[threadId]?.conversation ?? null);
  const agentId = isNew ? choice.agentId : (conversation?.agent_id ?? null);
  const model = isNew ? choice.model : (conversation?.model ?? null);
  const agent = agents.find((one) => one.id === agentId);
  const names = new Set(models.map((one) => one.id));
  if (model) names.add(model);

  const chooseAgent = (value: string) => {
    if (isNew) onChoice({ ...choice, agentId: value || null });
    else if (value) void threads.choose(threadId, { agent_id: value });
  };
  const chooseModel = (value: string) => {
    if (isNew) onChoice({ ...choice, model: value || null });
    else if (value) void threads.choose(threadId, { model: value });
  };
  return (
    <>
      {(agents.length > 0 || agentId) && (
        <span className="choice">
          <select aria-label={words.composer.agent} value={agentId ?? ""} onChange={(event) => chooseAgent(event.target.value)} title={words.composer.agent}>
            {(isNew || !agentId) && <option value="">{words.composer.noAgent}</option>}
            {agentId && !agent && <option value={agentId}>{words.composer.agent}</option>}
            {agents.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </select>
        </span>
      )}
      <span className="choice">
        <select aria-label={words.composer.model} value={model ?? ""} onChange={(event) => chooseModel(event.target.value)} title={words.composer.model}>
          {(isNew || !model) && <option value="">{agent?.model ? words.composer.agentModel : words.composer.defaultModel(fallback)}</option>}
          {[...names].map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </span>
    </>
  );
}
