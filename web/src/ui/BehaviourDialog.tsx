/** The dialog for what the model is told in one conversation: its instructions and its temperature. Loaded when it is opened. */
import { useRef, useState } from "react";

import { words } from "../words";
import { useSelect, useServices } from "./context";
import { Dialog } from "./Dialog";
import { Field } from "./forms";
import { ErrorText, useSubmit } from "./requestState";

export default function BehaviourDialog({ id, onClose }: { id: string; onClose: () => void }) {
  const { threads } = useServices();
  // The list leaves the instructions out.
  const conversation = useSelect((state) => state.threads[id]?.conversation ?? null);
  const [instructions, setInstructions] = useState(conversation?.instructions ?? "");
  const [temperature, setTemperature] = useState(conversation?.temperature === undefined ? "" : String(conversation.temperature));
  const dialog = useRef<HTMLDialogElement>(null);
  const { isSubmitting, error, submit } = useSubmit();
  const save = async () => {
    const changes = { instructions: instructions.trim() || null, temperature: temperature.trim() === "" ? null : Number(temperature) };
    if (await submit(() => threads.change(id, changes), words.settings.saved)) dialog.current?.close();
  };
  return (
    <Dialog dialog={dialog} id="behaviour" title={words.behaviour.title} onClose={onClose}>
      <form
        className="behaviour"
        onSubmit={(event) => {
          event.preventDefault();
          void save();
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
