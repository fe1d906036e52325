/** The button that attaches files, and says before anything is uploaded how many and how large they may be. */
import { useRef } from "react";

import { sizeInWords, words } from "../../words";
import { useSelect } from "../context";
import { Icon } from "../Icon";

interface Props {
  onFiles: (files: readonly File[]) => void;
  isDisabled?: boolean;
}

export function Paperclip({ onFiles, isDisabled = false }: Props) {
  const me = useSelect((state) => state.me);
  const picker = useRef<HTMLInputElement>(null);
  const label = `${words.composer.attach}. ${me ? words.composer.limits(me.max_files_per_message, sizeInWords(me.max_file_bytes)) : ""}`;
  return (
    <>
      <input
        ref={picker}
        className="unseen"
        type="file"
        multiple
        tabIndex={-1}
        aria-hidden="true"
        onChange={(event) => {
          onFiles([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      <button type="button" className="tool" onClick={() => picker.current?.click()} disabled={isDisabled} aria-label={label} title={label}>
        <Icon name="clip" />
      </button>
    </>
  );
}
