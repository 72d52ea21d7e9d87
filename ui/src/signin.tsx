// Signing in with a link: its code is exchanged for a cookie, and for a key that only this page can read.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { become, call, me, Problem } from "./api";
import mark from "./mark.svg";
import { CommandLine } from "./prose";
import { t, tx } from "./text";
import type { Listed } from "./types";
import { visible } from "./words";

type SignedIn = { user: string; key: string; instead_of: string };
export function LinkCommand() { return <><p class="lead">{t("signin.run")}</p><CommandLine command="tenax link" /></>; }

/** A screen for a person who cannot start yet: the mark, a title, and what to do. */
export const BareScreen = ({ title, children }: { title: string; children: ComponentChildren }) => <main class="setup">
  <div class="page"><img src={mark} alt="" width="56" height="56" /><h1>{title}</h1>{children}</div>
</main>;

/** Where to go after signing in: a path of this site, never another site. */
function target(to: string | null): string { return to !== null && /^\/(?![/\\])/.test(to) ? to : "/"; }

/** Return the path to open. The page starts the tour with a request, so that opening an address alone starts nothing. */
async function arrive(to: string): Promise<string> {
  return to === "/tour" ? `/c/${encodeURIComponent((await call<Listed>("POST", "/api/tour")).id)}` : to;
}

/** Run one sign-in at a time across tabs, so that the cookie and the key of a browser belong to the same device. */
function inTurn(work: () => Promise<void>): Promise<void> { return "locks" in navigator ? navigator.locks.request("tenax.sign-in", work) : work(); }

export function SignInScreen({ code, to, done }: { code: string; to: string | null; done: (path: string) => void }) {
  const [asked, ask] = useState<SignedIn | null>(null);
  const [said, say] = useState<Problem | null>(code === "" ? new Problem(403, t("signin.again")) : null); // the page does not keep the code
  const [busy, setBusy] = useState(true);
  const signIn = async (replace: boolean) => {
    setBusy(true);
    say(null);
    try {
      const signed = await call<SignedIn>("POST", "/api/sign-in", { code, replace, known: me() });
      if (signed.instead_of !== "") return ask(signed);
      if (signed.key === "") return done("/"); // this browser has used the link before: nothing to do
      become(signed.user, signed.key);
      done(await arrive(target(to)));
    } catch (error) {
      say(error instanceof Problem ? error : new Problem(0, t("error.unknown"), t("signin.again")));
    } finally {
      setBusy(false);
    }
  };
  const go = (replace: boolean) => inTurn(() => signIn(replace));
  useEffect(() => { if (code !== "") void go(false); }, []);
  if (said !== null) return <BareScreen title={said.message}>
    {said.passing ? <p><button type="button" class="main" disabled={busy} onClick={() => void go(false)}>{t("common.try_again")}</button></p> : <LinkCommand />}
  </BareScreen>;
  if (asked === null) return <main class="setup"><p class="status">{t("signin.busy")}</p></main>;
  return <BareScreen title={t("signin.ask", { user: visible(asked.user) })}>
    <p class="lead">
      {tx("signin.warning", { present: <strong>{visible(asked.instead_of)}</strong>, user: <strong>{visible(asked.user)}</strong> })}
    </p>
    <div class="choices">
      <button type="button" class="main" disabled={busy} onClick={() => done("/")}>{t("signin.stay", { user: visible(asked.instead_of) })}</button>
      <button type="button" disabled={busy} onClick={() => void go(true)}>{t("signin.change", { user: visible(asked.user) })}</button>
    </div>
  </BareScreen>;
}
