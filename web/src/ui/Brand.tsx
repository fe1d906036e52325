/** The name and the logo of the operator. The server puts them into the head of the document. */
import { words } from "../words";

const meta = (name: string): string | null => document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content || null;

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
