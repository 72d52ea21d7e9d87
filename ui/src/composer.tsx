// The composer: the input box with its buttons, and a draft per conversation. Every message goes through the outbox.
import { useEffect, useRef, useState } from "preact/hooks";
import { LivingTodo } from "./asked";
import { AttachButton, takeAttached, Waiting } from "./attach";
import { ModePicker, ProjectPicker, takeChoice } from "./choices";
import { stop as stopAnswer } from "./commands";
import { filesOf, keepWords, wordsOf } from "./drafts";
import { prevented } from "./form";
import { useGrowing } from "./hooks";
import { Icon, IconButton } from "./icon";
import { useUsage } from "./menu";
import { ModelPicker } from "./models";
import { submit } from "./outbox";
import { projects, sendKey } from "./preferences";
import { current, leaving, running, toast, type View } from "./state";
import { useSuggestions } from "./suggest";
import { t } from "./text";
import { PullThePlug } from "./tour";
import type { How } from "./types";
import { isWaiting } from "./words";

/** Put a text into the input box. It replaces the text there, or is added below it. */
export function fill(text: string, below = false): void {
  const area = document.querySelector<HTMLTextAreaElement>(".composer textarea");
  if (area === null) return;
  area.value = below && area.value.trim() !== "" ? `${area.value}\n\n${text}` : text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
  area.focus();
}

export function Composer({ view, conversation }: { view: View | null; conversation: string | null }) {
  const [text, setText] = useState(() => wordsOf(conversation));
  const area = useGrowing(text, 0.4);
  const [caret, setCaret] = useState(0);
  const shown = useRef(conversation);
  if (shown.current !== conversation) {
    shown.current = conversation;
    setText(wordsOf(conversation));
  }

  useEffect(() => { if (matchMedia("(pointer: fine)").matches) area.current?.focus(); }, [conversation]);

  const write = (next: string) => {
    setText(next);
    keepWords(conversation, next);
  };
  const send = (how: How) => {
    const attachments = takeAttached(conversation);
    if (attachments === null || (text.trim() === "" && attachments.length === 0)) return area.current?.focus();
    const numbers = view === null ? [] : view.rows.all.filter((row) => row.kind === "user").map((row) => Number(row.id));
    const after = numbers.reduce((a, b) => Math.max(a, b), 0);
    if (!submit({ conversation, leaving: conversation === null ? leaving() : null, text, attachments, how, after, ...(conversation === null && { choice: takeChoice() }) }))
      toast(t("composer.too_large"));
    write("");
    area.current?.focus();
  };
  const busy = conversation !== null && running.value;
  const stop = () => conversation !== null && stopAnswer(conversation);
  const insert = (from: number, to: number, words: string) => {
    const box = area.current!;
    box.setRangeText(words, from, to, "end");
    box.focus();
    write(box.value);
    setCaret(box.selectionStart);
  };
  const suggestions = useSuggestions(conversation, text, caret, insert);
  const onKeyDown = (event: KeyboardEvent) => {
    if (suggestions.onKeyDown(event)) return;
    if (event.key === "Escape") {
      if (busy) void stop();
      else area.current?.blur();
    } else if (event.key === "ArrowUp" && text === "" && view !== null) {
      const last = view.last((row) => row.kind === "user" && row.author !== "system");
      if (last === undefined || (busy && !isWaiting(last))) return;
      event.preventDefault();
      view.editing.value = last.id;
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && (sendKey.value === "enter" || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      send("queue");
    }
  };
  const archived = current.value?.archived === true;
  const empty = text.trim() === "" && filesOf(conversation).chips.value.length === 0;
  return <form class="composer" aria-label={t("composer.form")} onSubmit={prevented(() => send("queue"))}>
    {view !== null && <PullThePlug view={view} />}
    {view !== null && <LivingTodo view={view} />}
    <Waiting conversation={conversation} insert={(words) => insert(area.current!.selectionStart, area.current!.selectionEnd, words)} />
    <div class="box">
      {suggestions.list}
      <textarea ref={area} aria-label={t("composer.message")}
        placeholder={t(archived ? "composer.write_archived" : busy ? "composer.write_next" : "composer.write")} rows={1}
        dir={text === "" ? undefined : "auto"} value={text} {...suggestions.attributes}
        onInput={(event) => {
          write(event.currentTarget.value);
          setCaret(event.currentTarget.selectionStart);
        }}
        onSelect={(event) => setCaret(event.currentTarget.selectionStart)} onKeyDown={onKeyDown}
        enterkeyhint={sendKey.value === "enter" ? "send" : "enter"} />
      <div class="buttons">
        <AttachButton conversation={conversation} />
        <ModePicker />
        <ModelPicker />
        {conversation === null && projects.value.length > 0 && <ProjectPicker />}
        <span class="gap" />
        {view !== null && <ContextRing view={view} />}
        {busy && !empty && <>
          <IconButton icon="stop" name={t("composer.stop")} act={() => void stop()} />
          <button type="button" class="quiet" onClick={() => send("steer")} title={t("composer.steer_hint")}>{t("composer.steer")}</button>
        </>}
        {busy && empty ?
          <button key="stop" type="button" class="round stop" aria-label={t("composer.stop")} title={t("composer.stop")} onClick={() => void stop()}>
            <Icon name="stop" />
          </button> :
          <button key="send" type="submit" class="round main" aria-label={t(busy ? "composer.queue" : "composer.send")} title={t(busy ? "composer.queue_hint" : "composer.send")}>
            <Icon name="send" />
          </button>}
      </div>
    </div>
    <p class="hint">{t(`composer.keys_${busy ? "queue" : "send"}${sendKey.value === "enter" ? "" : "_ctrl"}`)}</p>
  </form>;
}

const RING_PX = 18;
const NEARLY_FULL = 0.8;

/** How much of the model's context is used. Loaded after every answer. */
function ContextRing({ view }: { view: View }) {
  const usage = useUsage(view);
  if (usage === null || usage.context_used === null || !usage.context) return null;
  const share = Math.min(1, usage.context_used / usage.context);
  const radius = RING_PX / 2 - 2;
  const round = 2 * Math.PI * radius;
  const label = t("composer.context", { percent: Math.round(100 * share) });
  return <svg class="ring" width={RING_PX} height={RING_PX} role="img" aria-label={label} data-full={share > NEARLY_FULL}>
    <title>{label}</title>
    <circle cx={RING_PX / 2} cy={RING_PX / 2} r={radius} />
    <circle cx={RING_PX / 2} cy={RING_PX / 2} r={radius} stroke-dasharray={`${share * round} ${round}`} />
  </svg>;
}
