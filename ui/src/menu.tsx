// The menu of a conversation.
import { useEffect, useState } from "preact/hooks";
import { call, conversationPath } from "./api";
import { dialog } from "./dialogs";
import { Popup } from "./popup";
import { attempt, current, dropListed, go, pathOf, putListed, titleOf, toast, type View } from "./state";
import type { Listed, Usage } from "./types";

function actions(view: View, listed: Listed | undefined): [string, () => void][] {
  const path = (rest = "") => conversationPath(view.id, rest);
  const patch = (fields: Partial<Listed>) =>
    attempt(async () => {
      putListed(await call<Listed>("PATCH", path(), fields));
      return true;
    });
  const restore = (of: number) => ({
    label: "Undo",
    run: () => void attempt(() => call("POST", path("/restore"), { of })),
  });
  const takeBack = (what: "undo" | "clear", said: string) =>
    attempt(async () => {
      const { seq } = await call<{ seq: number }>("POST", path(`/${what}`), what === "undo" ? {} : undefined);
      toast(said, restore(seq));
    });
  const remove = () =>
    attempt(async () => {
      await call("DELETE", path());
      dropListed(view.id);
      go("/");
      toast("Conversation deleted.");
    });
  return [
    [
      "Rename",
      () =>
        (dialog.value = {
          kind: "ask",
          title: "Rename",
          label: "Title",
          value: listed?.title ?? titleOf(listed),
          run: (title) => void patch({ title: title === "" ? null : title }),
        }),
    ],
    [listed?.pinned ? "Unpin" : "Pin", () => void patch({ pinned: listed?.pinned !== true })],
    [
      listed?.archived ? "Unarchive" : "Archive",
      () => {
        const archived = listed?.archived !== true;
        const undo = { label: "Undo", run: () => void patch({ archived: !archived }) };
        void patch({ archived }).then((done) => done && toast(archived ? "Archived." : "Unarchived.", undo));
      },
    ],
    [
      "Fork",
      () =>
        void attempt(async () => {
          const fork = await call<Listed>("POST", path("/fork"), {});
          putListed(fork);
          go(pathOf(fork.id));
          toast("Copied to a new conversation.");
        }),
    ],
    ["Remove last message", () => void takeBack("undo", "Message removed.")],
    ["Clear", () => void takeBack("clear", "Conversation cleared.")],
    ["Compact", () => void attempt(async () => toast((await call<{ said: string }>("POST", path("/compact"))).said))],
    [
      "Delete",
      () =>
        (dialog.value = {
          kind: "confirm",
          title: "Delete this conversation?",
          text: "This permanently deletes the conversation.",
          label: "Delete",
          run: () => void remove(),
        }),
    ],
  ];
}

export function Menu({ view }: { view: View }) {
  const items = actions(view, current.value).map(([label, run]) => ({ key: label, label, run, kind: label === "Delete" ? "bad" : "" }));
  return <Popup button="Menu" menu="This conversation" items={items} foot={<UsageLine view={view} />} />;
}

function UsageLine({ view }: { view: View }) {
  const [usage, setUsage] = useState<Usage | null>(null);
  useEffect(() => {
    call<{ usage?: Usage }>("GET", conversationPath(view.id))
      .then((found) => setUsage(found.usage ?? null))
      .catch(() => undefined);
  }, [view]);
  if (usage === null) return null;
  const cost = usage.cost === null ? "" : `, $${usage.cost.toFixed(usage.cost < 0.1 ? 4 : 2)}`;
  const room = usage.context_used !== null && usage.context ? ` ${Math.round((100 * usage.context_used) / usage.context)} % of the context used.` : "";
  return (
    <p class="meta">
      {usage.tokens_in.toLocaleString()} tokens in, {usage.tokens_out.toLocaleString()} out{cost}.{room}
    </p>
  );
}
