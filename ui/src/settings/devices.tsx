// The browsers in which the person is signed in: list them, sign out one or all.
import { useEffect, useState } from "preact/hooks";
import { call, forgetUser } from "../api";
import { lazy } from "../lazy";
import { attempt, isOwner, loadSetup, toast } from "../state";
import { locale, t, tx } from "../text";
import { visible } from "../words";
import { Setting } from "./values";

type Device = { id: string; name: string; signed_in_at: string; seen_at: string; expires_at: string; current: boolean };
type DeviceList = { devices: Device[]; address: string };
const PhoneLink = lazy(() => import("../phone").then((loaded) => loaded.PhoneLink));
const DAY = { day: "numeric", month: "short", year: "numeric" } as const;
const day = (time: string) => <time dateTime={time}>{new Date(time).toLocaleDateString(locale(), DAY)}</time>;

/** Sign this browser out. The page then shows how to sign in. */
function leave(): Promise<void> {
  forgetUser();
  return loadSetup();
}

export function Devices() {
  const [devices, setDevices] = useState<Device[] | null>(null);
  const [address, setAddress] = useState("");
  const [all, askAll] = useState(false);
  const [phone, setPhone] = useState(false);
  useEffect(() => {
    void call<DeviceList>("GET", "/api/devices").then(
      (found) => {
        setDevices(found.devices);
        setAddress(found.address);
      },
      () => undefined, // the rest of the page works without this list
    );
  }, []);
  const revoke = (device: Device) => attempt(async () => {
    const left = await call<DeviceList>("DELETE", `/api/devices/${encodeURIComponent(device.id)}`);
    if (device.current) return leave();
    setDevices(left.devices);
    toast(t("devices.signed_out"));
    document.querySelector<HTMLElement>(".devices li button")?.focus();
  });
  const revokeAll = () => attempt(async () => {
    await call("DELETE", "/api/devices");
    await leave();
  });
  if (devices === null) return null;
  return <section class="facts devices" aria-label={t("devices.title")}>
    <ul>
      {devices.map((device) => <li key={device.id}>
        <p><strong>{visible(device.name)}</strong> {device.current && t("devices.this")}</p>
        <div class="about">
          <span class="meta">
            {tx("devices.times", { signed: day(device.signed_in_at), seen: day(device.seen_at), end: day(device.expires_at) })}
          </span>
          <button type="button" class="quiet" aria-label={t(device.current ? "devices.sign_out_this" : "devices.sign_out", { name: visible(device.name) })} onClick={() => void revoke(device)}>
            {t("common.sign_out")}
          </button>
        </div>
      </li>)}
    </ul>
    {phone && <PhoneLink address={address} />}
    <div class="choices">
      {!phone && <button type="button" onClick={() => setPhone(true)}>{t("phone.open")}</button>}
      {all ? <>
        <span>{t("devices.all_warning")}</span>
        <button type="button" class="main" onClick={() => void revokeAll()}>{t("devices.all")}</button>
        <button type="button" class="quiet" onClick={() => askAll(false)}>{t("common.cancel")}</button>
      </> : <button type="button" class="quiet" onClick={() => askAll(true)}>{t("devices.all_ask")}</button>}
    </div>
    {isOwner.value && <Setting name="serve.sign_in_days" />}
  </section>;
}
