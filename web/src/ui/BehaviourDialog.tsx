/** The dialog for what the model is told in one conversation: its instructions and its temperature. Loaded when it is opened. */
import { useRef, useState } from "react";

import type { Behaviour } from "@turnkeep/client";
import { NEW } from "../state/state";
import { countInWords, words } from "../words";
import { useSelect, useServices } from "./context";
import { Dialog } from "./Dialog";
import { Field } from "./forms";
import { ErrorText, useSubmit } from "./requestState";

/** `id` is a conversation, or the one that the next message creates: its behaviour is kept with its draft. */
export default function BehaviourDialog({ id, onClose }: { id: string; onClose: () => void }) {
  const { drafts, threads } = useServices();
  // The list leaves the instructions out.
  const conversation = useSelect((state) => state.threads[id]?.conversation ?? null);
  if (id === NEW) return <BehaviourForm behaviour={drafts.behaviour ?? {}} save={(chosen) => drafts.setBehaviour(chosen)} onClose={onClose} />;
  // Until it is known what the conversation has, there is nothing to change.
  if (!conversation) return null;
  return <BehaviourForm behaviour={conversation} save={(chosen) => threads.change(id, chosen)} done={words.settings.saved} onClose={onClose} />;
}

/** As the server has it. */
const MAX_CHARS = 10_000;

interface Props {
  behaviour: { readonly [Name in keyof Behaviour]?: Behaviour[Name] | undefined };
  save: (chosen: Behaviour) => Promise<void> | void;
  /** What the page says when it is saved. */
  done?: string;
  onClose: () => void;
}

function BehaviourForm({ behaviour, save, done, onClose }: Props) {
  const [instructions, setInstructions] = useState(behaviour.instructions ?? "");
  const [temperature, setTemperature] = useState(String(behaviour.temperature ?? ""));
  const dialog = useRef<HTMLDialogElement>(null);
  const { isSubmitting, error, submit, setError } = useSubmit();
  const trySave = async () => {
    const chosen = { instructions: instructions.trim() || null, temperature: temperature.trim() === "" ? null : Number(temperature) };
    if ([...instructions.trim()].length > MAX_CHARS) return setError(words.behaviour.tooLong(countInWords(MAX_CHARS)));
    if (await submit(async () => await save(chosen), done)) dialog.current?.close();
  };
  return (
    <Dialog dialog={dialog} id="behaviour" title={words.behaviour.title} onClose={onClose}>
      <form
        className="behaviour"
        onSubmit={(event) => {
          event.preventDefault();
          void trySave();
        }}
      >
        <Field label={words.behaviour.instructions} hint={words.behaviour.instructionsHint} value={instructions} onChange={setInstructions} rows={6} />
        <Field label={words.behaviour.temperature} hint={words.behaviour.temperatureHint} value={temperature} onChange={setTemperature} type="number" max={2} step={0.1} />
        <ErrorText text={error} />
        <div className="form-foot">
          <button type="button" className="button" onClick={() => dialog.current?.close()}>
            {words.cancel}
          </button>
          <button type="submit" className="button is-main" disabled={isSubmitting}>
            {isSubmitting ? words.saving : words.save}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
