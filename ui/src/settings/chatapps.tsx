// Chat apps: the accounts of Tenax, such as a bot on Telegram, who may talk to them, and messages that did not go out.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api";
import { appIcon, appName } from "../chats";
import { confirm } from "../dialogs";
import { Field, prevented } from "../form";
import { useLook } from "../hooks";
import { Icon } from "../icon";
import { urlOf } from "../paths";
import { attempt, follow, loadSetup, pathOf, toast } from "../state";
import { t, type TextKey, tx } from "../text";
import { shortTime, visible } from "../words";
import { RemoveButton } from "./entries";
import { Refusal, useSave } from "./fields";
import { Setting } from "./values";
import { AddWebhook, HookAddress } from "./webhooks";

type State = "off" | "starting" | "connected" | "deaf" | "away" | "refused" | "elsewhere" | "broken";
interface Account {
  label: string; platform: string; account: string; name: string; state: State; error: string; received_at: string; sent_at: string;
  waiting: number; lag_seconds: number; failed: number; repeated: number; promise_in: string; promise_out: string;
}
interface OpenCode { code: string; account: string; person: string; name: string; at: string }
interface Person { account: string; person: string; name: string; user: string; owner: boolean; at: string }
type Kind = "answer" | "question" | "message" | "end" | "file" | "notice";
interface Failed { id: string; account: string; title: string; kind: Kind; state: string; error: string; at: string; conversation: string | null }
interface ChannelList { accounts: Account[]; codes: OpenCode[]; people: Person[]; failed: Failed[] }
type Change = (method: string, rest: string, done: TextKey, body?: unknown) => Promise<boolean | undefined>;

const PATH = "/api/channels";
const LOOK_MS = 2500;
/** The account on Telegram that creates bots. */
const FATHER = "@BotFather";
const DISCORD_PAGE = "discord.com/developers";
/** A webhook has no bot: a program writes with a secret. */
const WEBHOOK = "webhook";
/** How the dot of an account looks. */
const LAMPS: Record<State, string> = { connected: "", starting: "running", deaf: "asks", away: "asks", refused: "failed", elsewhere: "failed", broken: "failed", off: "off" };
const time = (at: string) => <time dateTime={at}>{shortTime(new Date(at))}</time>;
/** A code in two halves, as people read it. */
const halves = (code: string): string => code.replace(/^(.{4})(.{4})$/, "$1 $2");
const platformOf = (account: string): string => account.split(":")[0] ?? "";

export function ChatApps() {
  const [found, setFound] = useState<ChannelList | null>(null);
  useLook(() => call<ChannelList>("GET", PATH).then(setFound).catch(() => undefined), [], LOOK_MS);
  const change: Change = (method, path, done, body) => attempt(async () => {
    setFound(await call<ChannelList>(method, path, body));
    toast(t(done));
    return true;
  });
  if (found === null) return null;
  const { accounts, codes, people, failed } = found;
  const bot = accounts.find(({ platform }) => platform !== WEBHOOK);
  const botOf = (account: string) => visible(accounts.find((one) => one.account === account)?.name || appName(platformOf(account)));
  return <>
    <Codes codes={codes} botOf={botOf} change={change} />
    <section class="facts chat-apps" aria-label={t("chats.accounts")}>
      {accounts.length > 0 && <ul class="cards">
        {accounts.map((account) => <AccountCard key={account.label} account={account} put={setFound} change={change} />)}
      </ul>}
      {bot !== undefined && people.length + codes.length === 0 && <FirstMessage account={bot} />}
      {accounts.length === 0 ? <>
        <h2>{t("chats.add")}</h2>
        <AddAccount put={setFound} />
      </> : <details class="fold">
        <summary>{t("chats.add_another")}</summary>
        <AddAccount put={setFound} />
      </details>}
    </section>
    <FailedMessages failed={failed} change={change} />
    <People people={people} botOf={botOf} change={change} />
    <details class="fold">
      <summary>{t("chats.voice")}</summary>
      <Setting name="speech.url" />
      <Setting name="speech.model" />
      <Setting name="speech.key" />
      <Setting name="speech.timeout_seconds" />
    </details>
  </>;
}

// -- accounts ----------------------------------------------------------------------------------------------------

function AccountCard({ account, put, change }: { account: Account; put: (found: ChannelList) => void; change: Change }) {
  const { label, name, platform, state } = account;
  const app = appName(platform);
  const bot = visible(name || label);
  const remove = () => confirm(t("chats.remove_ask", { name: bot }), t("chats.remove_text"), t("common.remove"),
    () => change("DELETE", `${PATH}/${encodeURIComponent(label)}`, "chats.removed").then(loadSetup));
  return <li data-state={state}>
    <div class="head">
      <span>
        <b><Icon name={appIcon(platform)} /> {bot}</b>
        <small class="lamp"><span class="pulse" data-state={LAMPS[state]} />{t(`chats.state.${state}`, { app })}</small>
      </span>
      <button type="button" class="quiet" aria-label={t("common.remove_named", { name: bot })} onClick={remove}>{t("common.remove")}</button>
    </div>
    {account.error !== "" && <p class="refusal">{visible(account.error)}</p>}
    {platform === WEBHOOK && <HookAddress label={label} />}
    <dl class="pairs">
      <dt>{t("chats.in")}</dt><Direction at={account.received_at} promise={account.promise_in} />
      <dt>{t("chats.out")}</dt><Direction at={account.sent_at} promise={account.promise_out} />
      {account.waiting > 0 && <>
        <dt>{t("chats.waiting")}</dt>
        <dd>{t("chats.waiting_since", { n: account.waiting, time: shortTime(new Date(Date.now() - account.lag_seconds * 1000)) })}</dd>
      </>}
      {account.failed > 0 && <><dt>{t("chats.failed")}</dt><dd>{t("chats.messages", { n: account.failed })}</dd></>}
      {account.repeated > 0 && <><dt>{t("chats.repeated")}</dt><dd>{t("chats.messages", { n: account.repeated })}</dd></>}
    </dl>
    {(state === "refused" || state === "broken") && <details class="fold" open>
      <summary>{t("chats.new_token")}</summary>
      <TokenForm label={label} platform={platform} button={t("chats.use_token")} put={put} />
    </details>}
  </li>;
}

const Direction = ({ at, promise }: { at: string; promise: string }) => <dd>
  {at === "" ? t("chats.none_yet") : time(at)}{promise !== "" && <small>{t("chats.promise", { promise })}</small>}
</dd>;

/** What to do after a bot was connected. */
function FirstMessage({ account: { name, platform } }: { account: Account }) {
  const username = /^@(\w+)$/.exec(name)?.[1];
  const bot = platform === "telegram" && username !== undefined
    ? <a href={`https://t.me/${username}`} target="_blank" rel="noreferrer">{name}</a> : <b>{visible(name || appName(platform))}</b>;
  return <p class="next" role="status">{tx("chats.first", { bot })}</p>;
}

interface Adding { put: (found: ChannelList) => void }
/** How an account of a chat app is added, by platform. */
const FORMS: Record<string, (adding: Adding) => ComponentChildren> = {
  telegram: (adding) => <AddTelegram {...adding} />,
  matrix: (adding) => <AddMatrix {...adding} />,
  discord: (adding) => <AddDiscord {...adding} />,
  webhook: (adding) => <AddWebhook path={PATH} {...adding} />,
};
/** What a token looks like, by platform. */
const TOKEN_HINTS: Record<string, TextKey> = { telegram: "chats.token_hint", matrix: "chats.password_hint", discord: "chats.discord_token_hint" };

/** Asks for the chat app, and then for what it needs. */
function AddAccount(adding: Adding) {
  const platforms = Object.keys(FORMS);
  const [platform, choose] = useState(platforms[0]!);
  return <>
    <fieldset class="field">
      <legend>{t("chats.app")}</legend>
      <div class="picks">
        {platforms.map((name) => <label key={name} class="option">
          <input type="radio" name="platform" checked={platform === name} onChange={() => choose(name)} />
          <span>{appName(name)}</span>
        </label>)}
      </div>
    </fieldset>
    {FORMS[platform]!(adding)}
  </>;
}

function AddTelegram({ put }: Adding) {
  const father = <a href="https://t.me/BotFather" target="_blank" rel="noreferrer">{FATHER}</a>;
  return <TokenForm platform="telegram" button={t("chats.connect")} put={put}>
    <p class="meta">{t("chats.own_bot")}</p>
    <ol class="steps">
      <li>{tx("chats.step_open", { father })}</li>
      <li>{tx("chats.step_new", { command: <code>/newbot</code>, ending: <code>bot</code> })}</li>
      <li>{t("chats.step_token")}</li>
    </ol>
  </TokenForm>;
}

function AddDiscord({ put }: Adding) {
  const page = <a href="https://discord.com/developers/applications" target="_blank" rel="noreferrer">{DISCORD_PAGE}</a>;
  return <TokenForm platform="discord" button={t("chats.connect")} put={put}>
    <p class="meta">{t("chats.own_bot")}</p>
    <ol class="steps">
      <li>{tx("chats.discord_step_new", { page })}</li>
      <li>{t("chats.discord_step_intent")}</li>
      <li>{t("chats.discord_step_token")}</li>
      <li>{t("chats.discord_step_invite")}</li>
    </ol>
  </TokenForm>;
}

/** Asks for the homeserver, the user and the password. The server signs in before anything is saved. */
function AddMatrix({ put }: Adding) {
  const [url, setUrl] = useState("");
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const { error, busy, save } = useSave();
  const connect = async () => {
    const account = { platform: "matrix", url: url.trim(), user: user.trim(), token: secret.trim() };
    if (!(await save(async () => put(await call<ChannelList>("POST", PATH, account)), t("chats.connected")))) return;
    setSecret("");
    void loadSetup(); // conversations look for their chats from now on
  };
  return <form class="connect" aria-label={t("chats.add")} onSubmit={prevented(connect)}>
    <p class="meta">{t("chats.matrix_about")}</p>
    <ol class="steps">
      <li>{t("chats.matrix_step_account")}</li>
      <li>{t("chats.matrix_step_enter")}</li>
    </ol>
    <Field label={t("chats.homeserver")} hint={t("chats.homeserver_hint")} type="url" required maxLength={2000} value={url} put={setUrl} />
    <Field label={t("chats.user")} hint={t("chats.user_hint")} required maxLength={255} value={user} put={setUser} spellcheck={false} />
    <Field label={t("chats.password")} hint={t("chats.password_hint")} type="password" required maxLength={1000} value={secret} put={setSecret} spellcheck={false} />
    <Refusal text={error} />
    <div class="choices"><button type="submit" class="main" disabled={busy}>{busy ? t("chats.checking") : t("chats.connect")}</button></div>
  </form>;
}

interface TokenFormProps { platform: string; label?: string; button: string; put: (found: ChannelList) => void; children?: ComponentChildren }

/** Asks for a token. The server tries the token before anything is saved. */
function TokenForm({ platform, label, button, put, children }: TokenFormProps) {
  const [token, setToken] = useState("");
  const [url, setUrl] = useState("");
  const { error, busy, save } = useSave();
  const connect = async () => {
    const account = { platform, token: token.trim(), ...(url.trim() !== "" && { url: url.trim() }), ...(label !== undefined && { label }) };
    if (!(await save(async () => put(await call<ChannelList>("POST", PATH, account)), t("chats.connected")))) return;
    setToken("");
    setUrl("");
    void loadSetup(); // conversations look for their chats from now on
  };
  return <form class="connect" aria-label={label === undefined ? t("chats.add") : t("chats.new_token")} onSubmit={prevented(connect)}>
    {children}
    <Field label={t(platform === "matrix" ? "chats.password" : "chats.token")} hint={t(TOKEN_HINTS[platform] ?? "chats.token_hint")} type="password" required maxLength={1000} value={token} put={setToken} spellcheck={false} />
    {label === undefined && platform === "telegram" && <details class="fold">
      <summary>{t("chats.own_server")}</summary>
      <Field label={t("chats.url")} hint={t("chats.url_hint")} type="url" maxLength={2000} value={url} put={setUrl} />
    </details>}
    <Refusal text={error} />
    <div class="choices"><button type="submit" class="main" disabled={busy}>{busy ? t("chats.checking") : button}</button></div>
  </form>;
}

// -- people ------------------------------------------------------------------------------------------------------

interface WithBot { botOf: (account: string) => string; change: Change }

/** Strangers who wrote to a bot. They wait until the person lets them in. */
function Codes({ codes, botOf, change }: { codes: OpenCode[] } & WithBot) {
  const pair = (code: string, me: boolean) => change("POST", `${PATH}/pair`, me ? "chats.you_in" : "chats.other_in", { code, me })
    .then(() => document.querySelector<HTMLElement>(".codes button, .people li button")?.focus());
  const askMe = ({ code, name }: OpenCode) =>
    confirm(t("chats.me_ask", { name: visible(name) }), t("chats.me_text", { code: halves(code) }), t("chats.me"), () => pair(code, true));
  return <section class="facts codes" aria-label={t("chats.codes")} aria-live="polite">
    {codes.length > 0 && <>
      <h2>{t("chats.codes")} <span class="meta">{t("chats.codes_about")}</span></h2>
      <ul class="cards">
        {codes.map((code) => <li key={code.code}>
          <div class="head">
            <span>
              <b dir="auto">{visible(code.name || code.person)}</b>
              <small>{tx("chats.code_from", { id: <bdi>{visible(code.person)}</bdi>, bot: <bdi>{botOf(code.account)}</bdi>, time: time(code.at) })}</small>
            </span>
            <code class="code-words">{halves(code.code)}</code>
          </div>
          <div class="choices">
            <button type="button" class="main" onClick={() => askMe(code)}>{t("chats.me")}</button>
            <button type="button" onClick={() => void pair(code.code, false)}>{t("chats.other")}</button>
          </div>
        </li>)}
      </ul>
    </>}
  </section>;
}

function People({ people, botOf, change }: { people: Person[] } & WithBot) {
  if (people.length === 0) return null;
  const remove = ({ account, person }: Person) =>
    change("DELETE", `/api/chat-people?account=${encodeURIComponent(account)}&person=${encodeURIComponent(person)}`, "chats.person_removed");
  return <section class="facts people" aria-label={t("chats.people")}>
    <h2>{t("chats.people")} <span class="meta">{t("chats.people_about")}</span></h2>
    <ul>
      {people.map((person) => <li key={`${person.account} ${person.person}`}>
        <p><strong dir="auto">{visible(person.name || person.person)}</strong> {person.owner && <span class="badge">{t("common.you")}</span>}</p>
        <div class="about">
          <span class="meta">
            {tx("chats.person_from", { id: <bdi>{visible(person.person)}</bdi>, bot: <bdi>{botOf(person.account)}</bdi>, time: time(person.at) })}
            {!person.owner && <> {tx("chats.person_user", { user: <bdi>{visible(person.user)}</bdi> })}</>}
          </span>
          <RemoveButton label={t("common.remove_named", { name: visible(person.name || person.person) })} act={() => remove(person)} next=".people li button, .chat-apps summary" />
        </div>
      </li>)}
    </ul>
  </section>;
}

// -- messages that did not go out --------------------------------------------------------------------------------

function FailedMessages({ failed, change }: { failed: Failed[]; change: Change }) {
  if (failed.length === 0) return null;
  const act = (what: "retry" | "discard", id = "") => {
    const path = id === "" ? what : `${encodeURIComponent(id)}/${what}`;
    return change("POST", `${PATH}/deliveries/${path}`, what === "retry" ? "chats.retried" : "chats.discarded")
      .then(() => document.querySelector<HTMLElement>(".undelivered button, .chat-apps summary")?.focus());
  };
  return <section class="facts undelivered" aria-label={t("chats.undelivered")}>
    <h2>{t("chats.undelivered")} <span class="meta">{t("chats.undelivered_about")}</span></h2>
    <ul>
      {failed.map((one) => {
        const words = t(`chats.kind.${one.kind}`, { chat: visible(one.title) });
        return <li key={one.id}>
          <p>
            <strong dir="auto">{words}</strong> <span class="badge">{t(one.state === "dead" ? "chats.dead" : "chats.uncertain")}</span>
          </p>
          {one.error !== "" && <p class="status">{visible(one.error)}</p>}
          <div class="about">
            <span class="meta">{time(one.at)}{one.conversation !== null && <> · <a href={urlOf(pathOf(one.conversation))} onClick={follow}>{t("chats.open")}</a></>}</span>
            <button type="button" class="quiet" aria-label={t("chats.retry_named", { name: words })} onClick={() => void act("retry", one.id)}>{t("common.try_again")}</button>
            <button type="button" class="quiet" aria-label={t("chats.discard_named", { name: words })} onClick={() => void act("discard", one.id)}>{t("chats.discard")}</button>
          </div>
        </li>;
      })}
    </ul>
    {failed.length > 1 && <div class="choices">
      <button type="button" onClick={() => void act("retry")}>{t("chats.retry_all")}</button>
      <button type="button" class="quiet" onClick={() => void act("discard")}>{t("chats.discard_all")}</button>
    </div>}
  </section>;
}
