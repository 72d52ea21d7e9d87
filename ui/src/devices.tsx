// The browsers in which the person is signed in: list them, sign out one or all.
import { useEffect, useState } from "preact/hooks";
import { call, forgetUser } from "./api";
import { attempt, loadSetup, toast } from "./state";
import { visible } from "./words";

type Device = { id: string; name: string; signed_in_at: string; seen_at: string; expires_at: string; current: boolean };
type DeviceList = { devices: Device[] };
const DAY = { day: "numeric", month: "short", year: "numeric" } as const;
const dayOf = (time: string): string => new Date(time).toLocaleDateString(undefined, DAY);

/** Sign this browser out. The page then shows how to sign in. */
function leave(): Promise<void> {
  forgetUser();
  return loadSetup();
}

export function Devices() {
  const [devices, setDevices] = useState<Device[] | null>(null);
  const [all, askAll] = useState(false);
  useEffect(() => {
    void call<DeviceList>("GET", "/api/devices").then(
      (found) => setDevices(found.devices),
      () => undefined, // the rest of the page works without this list
    );
  }, []);
  const revoke = (device: Device) =>
    attempt(async () => {
      const left = await call<DeviceList>("DELETE", `/api/devices/${encodeURIComponent(device.id)}`);
      if (device.current) return leave();
      setDevices(left.devices);
      toast("Signed out.");
      document.querySelector<HTMLElement>(".devices li button")?.focus();
    });
  const revokeAll = () =>
    attempt(async () => {
      await call("DELETE", "/api/devices");
      await leave();
    });
  if (devices === null) return null;
  return (
    <section class="facts devices" aria-label="Devices">
      <h2>
        Devices <span class="meta">Browsers in which you are signed in. To sign in another one, run tenax link in a terminal.</span>
      </h2>
      <ul>
        {devices.map((device) => (
          <li key={device.id}>
            <p>
              <strong>{visible(device.name)}</strong> {device.current && "This browser"}
            </p>
            <div class="about">
              <span class="meta">
                Signed in <time dateTime={device.signed_in_at}>{dayOf(device.signed_in_at)}</time>, last seen{" "}
                <time dateTime={device.seen_at}>{dayOf(device.seen_at)}</time>, until <time dateTime={device.expires_at}>{dayOf(device.expires_at)}</time>
              </span>
              <button type="button" class="quiet" aria-label={`Sign out: ${visible(device.name)}${device.current ? ", this browser" : ""}`} onClick={() => void revoke(device)}>
                Sign out
              </button>
            </div>
          </li>
        ))}
      </ul>
      <div class="choices">
        {all ? (
          <>
            <span>Every browser, including this one, will need a new link.</span>
            <button type="button" class="main" onClick={() => void revokeAll()}>
              Sign out everywhere
            </button>
            <button type="button" class="quiet" onClick={() => askAll(false)}>
              Cancel
            </button>
          </>
        ) : (
          <button type="button" class="quiet" onClick={() => askAll(true)}>
            Sign out everywhere…
          </button>
        )}
      </div>
    </section>
  );
}
