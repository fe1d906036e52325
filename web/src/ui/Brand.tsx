/** What the operator has set: the name, the logo, and how long share links last. The server puts it into the head of the document. */
import { words } from "../words";

const meta = (name: string): string | null => document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content || null;

const USUAL_SHARE_DAYS = 90;

/** How many days a share link may last; 0 if there are none on this server. */
export function longestShareDays(): number {
  const days = meta("turnkeep-share-days");
  return days === null ? USUAL_SHARE_DAYS : Number(days);
}

export const brandName = (): string => meta("application-name") ?? words.product;

/** The logo; without one, the first letter of the operator's name, or Turnkeep's own mark. */
export function Mark() {
  const [logo, name] = [meta("turnkeep-logo"), meta("application-name")];
  if (logo) return <img className="mark-picture" src={logo} alt="" />;
  if (!name) return <span className="mark" aria-hidden="true" />;
  return (
    <span className="mark is-letter" aria-hidden="true">
      {[...name][0]?.toUpperCase()}
    </span>
  );
}
