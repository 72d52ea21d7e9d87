// Webhooks: a form that makes the secret, and the address for messages.
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { call } from "../api";
import { Field, prevented } from "../form";
import { urlOf } from "../paths";
import { copyText } from "../prose";
import { loadSetup, toast } from "../state";
import { t } from "../text";
import { Refusal, useSave } from "./fields";

const SECRET_BYTES = 32;
interface Accounts { accounts: { label: string; platform: string }[] }

/** The secret that was made last, until the person has copied it. The server never shows a secret. */
const made = signal<{ label: string; secret: string } | null>(null);

/** A random secret in the form of Standard Webhooks. */
function makeSecret(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(SECRET_BYTES));
  return `whsec_${btoa(String.fromCharCode(...bytes))}`;
}

/** Asks where the answers go, and connects a webhook with a new secret or with one that the person has. */
export function AddWebhook<T extends Accounts>({ path, put }: { path: string; put: (found: T) => void }) {
  const [url, setUrl] = useState("");
  const [own, setOwn] = useState("");
  const { error, busy, save } = useSave();
  const connect = async () => {
    const secret = own.trim() || makeSecret();
    const before = (await call<Accounts>("GET", path)).accounts.map((account) => account.label);
    const found = await call<T>("POST", path, { platform: "webhook", token: secret, url: url.trim() });
    const label = found.accounts.find((account) => account.platform === "webhook" && !before.includes(account.label))?.label;
    if (label !== undefined && own.trim() === "") made.value = { label, secret };
    put(found);
    setUrl("");
    setOwn("");
    void loadSetup(); // conversations look for their chats from now on
  };
  return <form class="connect" aria-label={t("chats.add")} onSubmit={prevented(() => save(connect, t("chats.connected")))}>
    <p class="meta">{t("hooks.about")}</p>
    <Field label={t("hooks.url")} hint={t("hooks.url_hint")} type="url" maxLength={2000} value={url} put={setUrl} />
    <details class="fold">
      <summary>{t("hooks.own_secret")}</summary>
      <Field label={t("hooks.secret")} hint={t("hooks.secret_hint")} type="password" maxLength={1000} value={own} put={setOwn} spellcheck={false} />
    </details>
    <Refusal text={error} />
    <div class="choices"><button type="submit" class="main" disabled={busy}>{t("chats.connect")}</button></div>
  </form>;
}

/** The address for messages of a webhook, and once its new secret. */
export function HookAddress({ label }: { label: string }) {
  const address = location.origin + urlOf(`/api/hooks/${label}`);
  const secret = made.value?.label === label ? made.value.secret : "";
  const copy = async () => toast(t(await copyText(secret) ? "common.copied" : "page.no_copying"));
  return <>
    <p class="meta">{t("hooks.address")} <code>{address}</code></p>
    {secret !== "" && <div class="next" role="status">
      <p>{t("hooks.once")}</p>
      <p><code>{secret}</code></p>
      <div class="choices">
        <button type="button" onClick={() => void copy()}>{t("common.copy")}</button>
        <button type="button" class="quiet" onClick={() => { made.value = null; }}>{t("hooks.kept")}</button>
      </div>
    </div>}
  </>;
}
