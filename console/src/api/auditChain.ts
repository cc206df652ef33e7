/**
 * Recomputes the hash chain of an audit trail in the browser, as `mooring audit verify` does it: the link of each row is
 * the SHA-256 over the chain's name, the position, the link before and the row. See docs/audit.md.
 *
 * A row is hashed as it was written, so numbers keep the text that the server sent.
 */
import { answer, type Schemas } from "./client";
import { addressOf, apiAt, HERE, type Place } from "./place";

export interface ChainCheck {
  rows: number;
  first: number;
  last: number;
  signatures: number;
  waiting: number;
  /** Where the chain breaks first, in words; null if it is whole. */
  fault: string | null;
}

interface Link {
  position: number;
  link: string;
  key_id: string | null;
  signature: string | null;
  row: Json;
}

type Json = string | boolean | null | RawNumber | Json[] | { [name: string]: Json };

class RawNumber {
  constructor(readonly text: string) {}
}

const PAGE = 500;
const FIRST_PREVIOUS = "0".repeat(64);
const encoder = new TextEncoder();

export async function verifyChain(place: Place, progress: (rows: number) => void): Promise<ChainCheck> {
  const state = await answer(apiAt(place).GET("/api/v1/tenants/{tenant_id}/audit/chain", { params: { path: HERE } }));
  const first = state.checkpoint?.position ?? 0;
  const last = state.head?.position ?? first;
  const check: ChainCheck = { rows: 0, first, last, signatures: 0, waiting: state.waiting_rows, fault: null };
  const keys = new Map<string, CryptoKey>();
  for (const each of state.keys) keys.set(each.id, await publicKey(each.public_key));
  let previous = state.checkpoint?.link ?? FIRST_PREVIOUS;
  for (let after = first; after < last; ) {
    const page = await links(place, after, Math.min(PAGE, last - after));
    for (const each of page) {
      check.fault = await faultOf(each, { chain: state.chain, position: after + 1, previous, keys, check });
      if (check.fault) return check;
      after += 1;
      previous = each.link;
      check.rows += 1;
    }
    progress(check.rows);
    if (page.length === 0) return { ...check, fault: `position ${after + 1} is missing` };
  }
  const extra = state.stored_rows - state.waiting_rows - (last - first);
  if (extra !== 0) check.fault = `the trail has ${Math.abs(extra)} rows ${extra > 0 ? "more" : "less"} than its chain`;
  return check;
}

interface Before {
  chain: Schemas["AuditChainView"]["chain"];
  position: number;
  previous: string;
  keys: Map<string, CryptoKey>;
  check: ChainCheck;
}

async function faultOf(each: Link, { chain, position, previous, keys, check }: Before): Promise<string | null> {
  if (each.position !== position) return `position ${position} is missing`;
  if (each.row === null) return `the row of position ${position} was deleted`;
  const row = await sha256(canonical(each.row));
  const wanted = await sha256(`mooring-audit-link-v1\n${chain}\n${position}\n${previous}\n${row}`);
  if (wanted !== each.link) return `the row of position ${position} was changed`;
  if (each.signature === null || each.key_id === null) return null;
  const key = keys.get(each.key_id);
  const message = encoder.encode(`mooring-audit-head-v1\n${chain}\n${position}\n${each.link}`);
  const isGood = key && (await crypto.subtle.verify("Ed25519", key, bytesOf(each.signature), message));
  if (!isGood) return `the signature of position ${position} is wrong`;
  check.signatures += 1;
  return null;
}

async function links(place: Place, after: number, limit: number): Promise<Link[]> {
  const response = await fetch(`${addressOf(place)}/audit/links?after=${after}&limit=${limit}`);
  const text = await response.text();
  await answer(Promise.resolve({ data: text, error: response.ok ? undefined : JSON.parse(text), response }));
  const page = JSON.parse(text, keepNumbers) as { items: (Omit<Link, "position"> & { position: RawNumber })[] };
  return page.items.map((each) => ({ ...each, position: Number(each.position.text) }));
}

function keepNumbers(_name: string, value: unknown, context?: { source?: string }): unknown {
  return typeof value === "number" ? new RawNumber(context?.source ?? String(value)) : value;
}

function canonical(value: Json): string {
  if (value instanceof RawNumber) return value.text;
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name] ?? null)}`).join(",")}}`;
}

async function sha256(text: string): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", encoder.encode(text)));
  return Array.from(digest, (each) => each.toString(16).padStart(2, "0")).join("");
}

function publicKey(text: string): Promise<CryptoKey> {
  return crypto.subtle.importKey("raw", bytesOf(text), "Ed25519", false, ["verify"]);
}

function bytesOf(base64url: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64url.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(text, (each) => each.charCodeAt(0));
}
