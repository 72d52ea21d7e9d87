// Render a component again only if one of its properties has changed.
import type { FunctionComponent } from "preact";
import { h } from "preact";
import { useMemo } from "preact/hooks";

export function memo<P extends object>(component: FunctionComponent<P>): FunctionComponent<P> {
  return (properties: P) => useMemo(() => h(component, properties), Object.values(properties));
}
