// Several selected conversations of the list, and the bar with what can be done with them.
import { computed, signal } from "@preact/signals";
import { archiveAll, askRemove, exportSeveral, moveCommands, patchListed } from "./commands";
import { Icon, IconButton } from "./icon";
import { menuItem } from "./menu";
import { Popup } from "./popup";
import { listed } from "./state";
import { t } from "./text";

const chosen = signal<ReadonlySet<string>>(new Set());
/** Where a range begins. */
let pivot = "";
/** The selected conversations that still exist, in the order of the list. */
export const selected = computed(() => listed.value.filter(({ id }) => chosen.value.has(id)));
export const isSelecting = computed(() => selected.value.length > 0);
export const isSelected = (id: string): boolean => chosen.value.has(id);

export function select(id: string, on = !chosen.value.has(id)): void {
  pivot = id;
  const next = new Set(chosen.value);
  if (on) next.add(id);
  else next.delete(id);
  chosen.value = next;
}

/** Select everything between the row that was selected last and this one. `shown` has the ids of all rows in their order. */
function selectTo(id: string, shown: string[]): void {
  const [from, to] = [shown.indexOf(pivot), shown.indexOf(id)].sort((a, b) => a - b) as [number, number];
  if (from === -1) return select(id, true);
  chosen.value = new Set([...chosen.value, ...shown.slice(from, to + 1)]);
}

export function leaveSelection(): void { chosen.value = new Set(); }

/** Whether a click on a row selects it. `shown` has the ids of all rows in their order. */
export function clickSelects(event: MouseEvent, id: string, shown: () => string[]): boolean {
  if (event.button !== 0 || event.altKey) return false;
  if (event.shiftKey) selectTo(id, shown());
  else if (event.ctrlKey || event.metaKey || isSelecting.value) select(id);
  else return false;
  event.preventDefault();
  return true;
}

export function SelectionBar() {
  const all = selected.value;
  if (all.length === 0) return null;
  const ids = all.map(({ id }) => id);
  const [pin, archive] = [all.some(({ pinned }) => !pinned), all.some(({ archived }) => !archived)];
  const act = async (work: Promise<unknown>) => {
    await work;
    leaveSelection();
  };
  return <div class="selection" role="toolbar" aria-label={t("selection.title")}>
    <span role="status">{t("selection.count", { n: ids.length })}</span>
    <div>
      <IconButton icon="pin" name={t(pin ? "menu.pin" : "menu.unpin")} act={() => void act(patchListed(ids, { pinned: pin }))} />
      <IconButton icon="archive" name={t(archive ? "menu.archive" : "menu.unarchive")} act={() => void act(archiveAll(ids, archive))} />
      {moveCommands(ids).length > 0 &&
        <Popup button={<Icon name="folder" />} name={t("menu.move")} kind="quiet icon" menu={t("menu.move")} items={() => moveCommands(ids, undefined, leaveSelection).map(menuItem)} />}
      <Popup button={<Icon name="export" />} name={t("menu.export")} kind="quiet icon" menu={t("menu.export")} items={() => exportSeveral(ids, leaveSelection).map(menuItem)} />
      <IconButton icon="delete" name={t("menu.delete")} kind="bad" act={() => askRemove(ids, leaveSelection)} />
      <IconButton icon="close" name={t("selection.leave")} act={leaveSelection} />
    </div>
  </div>;
}
