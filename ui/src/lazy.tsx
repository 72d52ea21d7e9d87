// A component whose code is loaded when it is first shown.
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { toast } from "./state";
import { t } from "./text";

/** Nothing is shown while the code loads. If it does not load, `failed` runs, and showing the component again tries again. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>, failed: () => void = () => undefined): (props: P) => preact.JSX.Element | null {
  const found = signal<ComponentType<P> | null>(null);
  let loading = false;
  const start = () => {
    loading = true;
    load().then((component) => (found.value = component))
      .catch(() => {
        failed();
        toast(t("error.reload"), undefined, true);
      })
      .finally(() => (loading = false));
  };
  return (props) => {
    const Found = found.value;
    if (Found !== null) return <Found {...props} />;
    if (!loading) start();
    return null;
  };
}
