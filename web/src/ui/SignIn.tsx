/** Sign-in: at the identity provider, or with a link. Shown as a page, or over the page when the session has ended. */
import { useEffect, useRef, useState } from "react";

import { signinWays } from "../effects/requests";
import { hasUnsavedInput } from "../state/selectors";
import { words } from "../words";
import { Mark } from "./Brand";
import { useSelect, useServices } from "./context";
import { ErrorText, useLoaded, useSubmit } from "./requestState";

export function SignIn() {
  const { session } = useServices();
  const [providerSignOut] = useState(() => session.takeProviderSignOut());
  return (
    <main className="signin">
      <Mark />
      <h1>{words.session.title}</h1>
      {providerSignOut && (
        <p role="status">
          {words.session.signedOut} <a href={providerSignOut}>{words.session.providerSignOut}</a>
        </p>
      )}
      <SignInWays />
    </main>
  );
}

/** Over the page, which keeps everything that was typed. */
export function SessionEnded() {
  const isUnsaved = useSelect(hasUnsavedInput);
  const dialog = useRef<HTMLDivElement>(null);
  useEffect(() => dialog.current?.focus(), []);
  return (
    <div className="signin-over">
      <div ref={dialog} tabIndex={-1} className="signin-dialog" role="dialog" aria-modal="true" aria-labelledby="session-ended">
        <h1 id="session-ended">{words.session.ended}</h1>
        <p>{isUnsaved ? words.session.endedNewTab : words.session.endedHint}</p>
        <SignInWays opensTab={isUnsaved} />
      </div>
    </div>
  );
}

/** The ways to sign in. With `opensTab` the provider opens in another tab, because this one has input that a reload would lose. */
function SignInWays({ opensTab = false }: { opensTab?: boolean }) {
  const ways = useLoaded(signinWays);
  if (!ways.value && ways.error === null) return <p className="faint">{words.session.starting}</p>;
  const provider = ways.value?.provider ?? null;
  if (!provider) return <LinkForm />;
  const here = location.pathname + location.hash;
  return (
    <>
      <a className="button is-main signin-provider" href={`${provider.url}?return_to=${encodeURIComponent(here)}`} {...(opensTab ? { target: "_blank", rel: "noopener" } : {})}>
        {words.session.with(provider.name)}
      </a>
      <details className="signin-other">
        <summary>{words.session.other}</summary>
        <LinkForm />
      </details>
    </>
  );
}

function LinkForm() {
  const { session } = useServices();
  const [link, setLink] = useState("");
  const { isSubmitting, error, submit, setError } = useSubmit({ isSignIn: true });
  const open = () => {
    const { invite, token } = secretOf(link);
    if (invite) location.assign(`/invite#${invite}`);
    else if (token) void submit(() => session.openLink(token));
    else setError(words.session.notALink);
  };
  return (
    <>
      <p>{words.session.explanation}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          open();
        }}
      >
        <label htmlFor="link">{words.session.paste}</label>
        <div className="signin-row">
          <input id="link" value={link} onChange={(event) => setLink(event.target.value)} autoComplete="off" spellCheck={false} />
          <button type="submit" className="button is-main" disabled={isSubmitting}>
            {words.session.go}
          </button>
        </div>
        <ErrorText text={error} />
      </form>
    </>
  );
}

/** What a link contains: the secret of an invite, or the token of the link that the server prints. */
function secretOf(text: string): { invite?: string; token?: string } {
  const trimmed = text.trim();
  const invite = /(?:^|#)(tki_[\w-]{20,100})$/.exec(trimmed)?.[1];
  if (invite) return { invite };
  if (/^[\w.-]{20,200}$/.test(trimmed)) return { token: trimmed };
  try {
    const token = new URL(trimmed).searchParams.get("token");
    return token ? { token } : {};
  } catch {
    return {};
  }
}
