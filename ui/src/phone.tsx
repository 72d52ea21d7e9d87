// A QR code that signs a phone in. The code is drawn here: the link is shown to nobody else.
import { useState } from "preact/hooks";
import { encode } from "uqr";
import { call } from "./api";
import { BASE } from "./paths";
import { attempt, setup } from "./state";
import { t, tx } from "./text";
import { visible } from "./words";

/** The white border that a scanner needs, in modules. */
const QUIET = 4;
const isLocal = (host: string): boolean => host === "localhost" || host === "[::1]" || host.startsWith("127.");

/** A QR code as SVG: black on white in every theme, because scanners expect it. */
function QrCode({ text, label }: { text: string; label: string }) {
  const { data, size } = encode(text, { ecc: "M", border: 0 });
  const path = data.flatMap((row, y) => row.map((dark, x) => (dark ? `M${x},${y}h1v1h-1z` : ""))).join("");
  const side = size + 2 * QUIET;
  return <svg class="qr" role="img" aria-label={label} viewBox={`${-QUIET} ${-QUIET} ${side} ${side}`} shape-rendering="crispEdges">
    <rect x={-QUIET} y={-QUIET} width={side} height={side} fill="#fff" />
    <path d={path} fill="#000" />
  </svg>;
}

/** `address` is the address of the server for other machines, or empty if it listens only on this one. */
export function PhoneLink({ address }: { address: string }) {
  const [link, setLink] = useState<string>();
  const origin = isLocal(location.hostname) ? address : location.origin + BASE.replace(/\/$/, "");
  const file = setup.value?.file ?? "";
  if (origin === "" && file === "") return <p class="status">{t("phone.local_other")}</p>;
  if (origin === "")
    return <p class="status">{tx("phone.local", { setting: <code>host = "0.0.0.0"</code>, part: <code>[serve]</code>, file: <code>{visible(file)}</code>, command: <code>tenax serve --host 0.0.0.0</code> })}</p>;
  const make = () => attempt(async () => {
    const { code } = await call<{ code: string }>("POST", "/api/devices/links");
    setLink(`${origin}/link#code=${code}`);
  });
  return <div class="phone">
    {link !== undefined && <QrCode key={link} text={link} label={t("phone.code")} />}
    {link !== undefined && <p role="status">{tx("phone.scan", { address: <strong>{origin}</strong> })}</p>}
    {origin.startsWith("http:") && <p class="meta">{t("phone.plain")}</p>}
    <button type="button" onClick={() => void make()}>{t(link === undefined ? "phone.show" : "phone.again")}</button>
  </div>;
}
