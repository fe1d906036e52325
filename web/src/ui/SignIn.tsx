/** The sign-in form, for a user whom the server does not know. */
import { useState } from "react";

import { words } from "../words";

export function SignIn() {
  const [link, setLink] = useState("");
  const [error, setError] = useState("");
  const submit = () => {
    const token = tokenOf(link);
    if (token) location.assign(`/signin?token=${encodeURIComponent(token)}`);
    else setError(words.session.notALink);
  };
  return (
    <main className="signin">
      <span className="mark" aria-hidden="true" />
      <h1>{words.session.title}</h1>
      <p>{words.session.explanation}</p>
      <p>{words.session.steps}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <label htmlFor="link">{words.session.paste}</label>
        <div className="signin-row">
          <input id="link" value={link} onChange={(event) => setLink(event.target.value)} autoComplete="off" spellCheck={false} />
          <button type="submit" className="button is-main">
            {words.session.go}
          </button>
        </div>
        {error && (
          <p role="alert" className="is-failure">
            {error}
          </p>
        )}
      </form>
    </main>
  );
}

function tokenOf(text: string): string | null {
  const trimmed = text.trim();
  if (/^[\w-]{20,200}$/.test(trimmed)) return trimmed;
  try {
    return new URL(trimmed).searchParams.get("token");
  } catch {
    return null;
  }
}
