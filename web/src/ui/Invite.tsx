/** An invite that was opened. It is used when the person says so: programs that only look at links do not use it up. */
import { words } from "../words";
import { brandName, Mark } from "./Brand";
import { useSelect, useServices } from "./context";
import { ErrorText, useSubmit } from "./requestState";

export function InviteView({ secret }: { secret: string }) {
  const { session } = useServices();
  const me = useSelect((state) => (state.session === "signed_in" ? state.me : null));
  const { isSubmitting, error, submit } = useSubmit({ isSignIn: true });
  return (
    <main className="signin">
      <Mark />
      <h1>{words.invite.title}</h1>
      <p>{secret ? words.invite.explanation(brandName()) : words.invite.empty}</p>
      {me?.user && <p>{words.invite.replaces(me.user.name ?? me.user.external_id)}</p>}
      <ErrorText text={error} />
      {secret && (
        <button type="button" className="button is-main signin-provider" disabled={isSubmitting} autoFocus onClick={() => void submit(() => session.acceptInvite(secret))}>
          {words.invite.accept}
        </button>
      )}
    </main>
  );
}
