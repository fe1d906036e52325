/** What went wrong or right elsewhere, for a moment. */
import { words } from "../words";
import { useDesk, useSelect } from "./context";
import { Icon } from "./Icon";

export function Notices() {
  const desk = useDesk();
  const notices = useSelect((state) => state.notices);
  return (
    <div className="notices" role="region" aria-label="Notices">
      {notices.map((notice) => (
        <div key={notice.id} className={notice.kind === "error" ? "notice is-failure" : "notice"} role={notice.kind === "error" ? "alert" : "status"}>
          <span>{notice.text}</span>
          <button type="button" className="tool is-small" onClick={() => desk.dismiss(notice.id)} aria-label={words.dismiss}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
