/** What went wrong or right elsewhere, for a moment. */
import { words } from "../words";
import { useServices, useSelect } from "./context";
import { Icon } from "./Icon";

export function Notices() {
  const { notices } = useServices();
  const shown = useSelect((state) => state.notices);
  return (
    <div className="notices" role="region" aria-label="Notices">
      {shown.map((notice) => (
        <div key={notice.id} className={notice.kind === "error" ? "notice is-failure" : "notice"} role={notice.kind === "error" ? "alert" : "status"}>
          <span>{notice.text}</span>
          <button type="button" className="tool is-small" onClick={() => notices.dismiss(notice.id)} aria-label={words.dismiss}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
