// The composer: the input box with its buttons, and a draft per conversation. Every message goes through the outbox.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, conversationPath } from "./api";
import { AttachButton, takeAttached, Waiting } from "./attach";
import { keepWords, wordsOf } from "./drafts";
import { submit } from "./outbox";
import { attempt, current, leaving, running, toast, type View } from "./state";
import { PullThePlug } from "./tour";
import type { How } from "./types";

/** Put a text into the input box. It replaces the text there, or is added below it. */
export function fill(text: string, below = false): void {
  const area = document.querySelector<HTMLTextAreaElement>("textarea[aria-label=Message]");
  if (area === null) return;
  area.value = below && area.value.trim() !== "" ? `${area.value}\n\n${text}` : text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
  area.focus();
}

export function Composer({ view, conversation }: { view: View | null; conversation: string | null }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(() => wordsOf(conversation));
  const shown = useRef(conversation);
  if (shown.current !== conversation) {
    shown.current = conversation;
    setText(wordsOf(conversation));
  }

  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  }, [conversation]);
  useLayoutEffect(() => {
    const box = area.current;
    if (box === null) return;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, window.innerHeight * 0.4)}px`;
  }, [text]);

  const write = (next: string) => {
    setText(next);
    keepWords(conversation, next);
  };
  const send = (how: How) => {
    const attachments = takeAttached(conversation);
    if (attachments === null || (text.trim() === "" && attachments.length === 0)) return area.current?.focus();
    const numbers = view === null ? [] : view.rows.all.filter((row) => row.kind === "user").map((row) => Number(row.id));
    const after = numbers.reduce((a, b) => Math.max(a, b), 0);
    if (!submit({ conversation, leaving: conversation === null ? leaving() : null, text, attachments, how, after }))
      toast("This message is too large for the browser’s storage. Keep this tab open until it is sent.");
    write("");
    area.current?.focus();
  };
  const busy = conversation !== null && running.value;
  const stop = () => conversation !== null && attempt(() => call("POST", conversationPath(conversation, "/stop")));
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      if (busy) void stop();
      else area.current?.blur();
    } else if (event.key === "ArrowUp" && text === "" && !busy && view !== null) {
      const last = view.last((row) => row.kind === "user" && row.author !== "system");
      if (last === undefined) return;
      event.preventDefault();
      view.editing.value = last.id;
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send("queue");
    }
  };
  const archived = current.value?.archived === true;
  return (
    <form
      class="composer"
      aria-label="Write"
      onSubmit={(event) => {
        event.preventDefault();
        send("queue");
      }}
    >
      {view !== null && <PullThePlug view={view} />}
      <Waiting conversation={conversation} />
      <div class="box">
        <textarea
          ref={area}
          aria-label="Message"
          placeholder={archived ? "Write (archived)" : busy ? "Write the next message" : "Write a message"}
          rows={1}
          dir="auto"
          value={text}
          onInput={(event) => write(event.currentTarget.value)}
          onKeyDown={onKeyDown}
          enterkeyhint="send"
        />
        <div class="buttons">
          <AttachButton conversation={conversation} />
          {busy ? (
            <>
              <button type="submit" class="main" title="Send when the current answer is done">
                Queue
              </button>
              <button type="button" onClick={() => send("steer")} title="The model reads it at its next step, such as after a tool call. A plain answer has only one step: then it waits like Queue.">
                Steer
              </button>
              <button type="button" class="stop" onClick={() => void stop()}>
                Stop
              </button>
            </>
          ) : (
            <button type="submit" class="main">
              Send
            </button>
          )}
        </div>
      </div>
      <p class="hint">Enter to {busy ? "queue" : "send"}, Shift+Enter for a new line.</p>
    </form>
  );
}
