/** Times: relative where one looks, exact on hover. */
import { useSyncExternalStore } from "react";

let now = Date.now();
const listeners = new Set<() => void>();
window.setInterval(() => {
  now = Date.now();
  for (const each of listeners) each();
}, 5_000);

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

export type TimeZone = "local" | "utc";

const ZONE = "mooring-time-zone";
let zone: TimeZone = localStorage.getItem(ZONE) === "utc" ? "utc" : "local";
let { exact, clock } = formats();

function formats() {
  const timeZone = zone === "utc" ? "UTC" : undefined;
  return {
    exact: new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long", timeZone }),
    clock: new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone }),
  };
}

/** The zone in which times are shown, in this browser. */
export function setTimeZone(wanted: TimeZone): void {
  zone = wanted;
  if (zone === "local") localStorage.removeItem(ZONE);
  else localStorage.setItem(ZONE, zone);
  ({ exact, clock } = formats());
  for (const each of listeners) each();
}

export function useTimeZone(): TimeZone {
  return useSyncExternalStore(subscribe, () => zone);
}

/** The time now, renewed every few seconds. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

export function Ago({ at }: { at: string }) {
  useTimeZone();
  const current = useNow();
  const seconds = Math.round((new Date(at).getTime() - current) / 1_000);
  const unit = UNITS.find(([, size]) => Math.abs(seconds) >= size);
  const text = unit ? relative.format(Math.trunc(seconds / unit[1]), unit[0]) : "just now";
  return (
    <time dateTime={at} title={exact.format(new Date(at))} className="whitespace-nowrap">
      {text}
    </time>
  );
}

export function Clock({ at }: { at: string }) {
  useTimeZone();
  return (
    <time dateTime={at} title={exact.format(new Date(at))} className="font-mono text-xs text-muted tabular-nums">
      {clock.format(new Date(at))}
    </time>
  );
}

/** A duration as people say it: 340 ms, 4.2 s, 3 min 10 s. */
export function duration(milliseconds: number): string {
  if (milliseconds < 1_000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1_000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export function money(minor: number, currency: string): string {
  return new Intl.NumberFormat("en", { style: "currency", currency }).format(minor / 100);
}

/** How long it has been; it grows while one looks. */
export function Elapsed({ since }: { since: string }) {
  const current = useNow();
  return <>{duration(Math.max(0, current - new Date(since).getTime()))}</>;
}
