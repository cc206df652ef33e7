/** Amounts of the API are integers of 10⁻⁶ minor unit; here they become money of their currency, and quantities text. */
import type { Period } from "../api/queries/money";

const MICRO = 1_000_000;

/** The decimals of a currency; two for a code that is not complete yet. */
function decimals(currency: string): number {
  if (!/^[A-Z]{3}$/.test(currency)) return 2;
  return new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions().maximumFractionDigits ?? 2;
}

/** Minor units as money, such as €2.50; every currency has its own number of decimals. */
export function minorText(minor: number, currency: string): string {
  return new Intl.NumberFormat("en", { style: "currency", currency }).format(minor / 10 ** decimals(currency));
}

/** What is smaller than the smallest coin is not shown as nothing. */
export function microText(micro: number, currency: string | null): string {
  if (currency === null) return "not priced";
  const minor = micro / MICRO;
  if (micro !== 0 && Math.abs(minor) < 0.5) return `${micro < 0 ? "> −" : "< "}${minorText(1, currency)}`;
  return minorText(minor, currency);
}

/** The integer itself as money with all its decimals, for somebody who checks a line by hand. */
export function exactText(micro: number, currency: string | null): string {
  if (currency === null) return "not priced";
  const places = decimals(currency) + 6;
  const digits = String(Math.abs(micro)).padStart(places + 1, "0");
  return `${micro < 0 ? "−" : ""}${digits.slice(0, -places)}.${digits.slice(-places)} ${currency}`;
}

const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });

/** How much of a unit, from 10⁻⁶ unit: GPU-seconds as hours, because prices are per hour. */
export function quantityText(micro: number | null | undefined, unit: string | null | undefined): string {
  if (micro == null || !unit) return "";
  if (unit === "gpu_second") return `${numbers.format(micro / MICRO / 3_600)} GPU-hours`;
  return `${numbers.format(micro / MICRO)} ${unitText(unit)}`;
}

export function unitText(unit: string): string {
  return unit === "gpu_second" ? "GPU time" : unit.replaceAll("_", " ");
}

/** What a price says: €2.50 per GPU-hour, €2.00 per 1,000,000 token out. */
export function priceText(minor: number, per: number, unit: string, currency: string): string {
  if (unit === "gpu_second") return `${minorText((minor * 3_600) / per, currency)} per GPU-hour`;
  return `${minorText(minor, currency)} per ${per === 1 ? "" : `${numbers.format(per)} `}${unitText(unit)}`;
}

const MONTHS = new Intl.DateTimeFormat("en", { month: "long", year: "numeric", timeZone: "UTC" });

/** This month and those before it, as 2026-11; months are of UTC, as statements are. */
export function recentMonths(count: number, now = new Date()): string[] {
  return Array.from({ length: count }, (_, back) =>
    new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1)).toISOString().slice(0, 7),
  );
}

export function monthText(month: string): string {
  return MONTHS.format(new Date(`${month}-01T00:00:00Z`));
}

/** The time of a month; the present one has no end yet. */
export function periodOf(month: string | undefined): Period {
  if (month === undefined) return {};
  const [year, number] = month.split("-").map(Number);
  const next = new Date(Date.UTC(year ?? 1970, number ?? 1, 1));
  return { since: `${month}-01T00:00:00Z`, until: next > new Date() ? undefined : next.toISOString() };
}

/** What a person typed, in minor units; null if it is not an amount. */
export function toMinor(text: string, currency: string): number | null {
  const typed = text.trim().replaceAll(",", "");
  if (!/^\d+(\.\d+)?$/.test(typed) || !/^[A-Z]{3}$/.test(currency)) return null;
  return Math.round(Number(typed) * 10 ** decimals(currency));
}

/** Minor units as somebody would type them into a field. */
export function minorToText(minor: number, currency: string): string {
  const places = decimals(currency);
  return (minor / 10 ** places).toFixed(places);
}
