/**
 * Verifies an exported bundle of receipts in the browser: the same checks as `mooring receipts verify`.
 *
 * A signature proves who signed a receipt and that it was not changed; the chain proves that the node signed no other
 * receipt for the same position. That the key belongs to the node is the platform's word: compare its fingerprint.
 */
import type { Schemas } from "./client";

const CONTEXT = new TextEncoder().encode("mooring-receipt-v1\n");
const FIRST_PREVIOUS = "0".repeat(64);
const RECEIPTS_MAX = 10_000;
const KINDS = "processes namespaces mounts links sockets ports cgroups files containers secrets".split(" ");

/** The bundle proves nothing; the message says why. */
export class BundleRefused extends Error {}

interface ReceiptDocument {
  v: number;
  node_id: string;
  sequence: number;
  previous: string;
  owner: string;
  host: string;
  task_type: string;
  clean: boolean;
  truncated: boolean;
  found: unknown[];
  removed: unknown[];
  remaining: { kind: string; name: string }[];
  looked: Record<string, unknown>;
  not_looked?: string[];
  devices?: { name: string; state: string; detail?: string }[];
}

export interface VerifiedBundle {
  document: ReceiptDocument;
  fingerprint: string;
  proves: string[];
  doesNotProve: string[];
}

interface Checked {
  id: string;
  document: ReceiptDocument;
  previousIsKnown: boolean;
}

export async function verifyBundle(bundle: Schemas["ReceiptBundle"]): Promise<VerifiedBundle> {
  if (!globalThis.crypto?.subtle)
    throw new BundleRefused("this browser verifies nothing on a page without TLS; use the command");
  try {
    return await verify(bundle);
  } catch (error) {
    if (error instanceof BundleRefused) throw error;
    throw new BundleRefused(`this is not a bundle of receipts: ${String(error)}`);
  }
}

async function verify(bundle: Schemas["ReceiptBundle"]): Promise<VerifiedBundle> {
  if (bundle.v !== 1) throw new BundleRefused(`the bundle has version ${bundle.v}; this page supports 1`);
  const raw = decoded(bundle.signing_key, "signing_key");
  if (raw.length !== 32) throw new BundleRefused("signing_key is not the 32 bytes of an Ed25519 key");
  const listed = bundle.receipts;
  if (listed.length < 1 || listed.length > RECEIPTS_MAX)
    throw new BundleRefused(`it has ${listed.length} receipts; 1 to ${RECEIPTS_MAX} are allowed`);
  const chain = chainOf(bundle.chain);
  const key = await importedKey(raw);
  const checked: Checked[] = [];
  for (const each of listed) checked.push(await checkedReceipt(key, bundle.node_id, each, chain));
  const whole = new Set(checked.map((each) => each.document.sequence));
  if (whole.size !== checked.length) throw new BundleRefused("two receipts have the same position in the chain");
  const asked = checked.filter((each) => each.id === bundle.receipt_id);
  const [receipt] = asked;
  if (receipt === undefined || asked.length !== 1)
    throw new BundleRefused("the receipt that it was exported for is missing");
  const signed = [...whole].filter((sequence) => whole.has(sequence - 1)).length;
  const byHash = checked.filter((each) => each.previousIsKnown).length - signed;
  const fingerprint = `sha256:${await sha256(raw)}`;
  return {
    document: receipt.document,
    fingerprint,
    proves: proven(receipt.document, fingerprint, signed),
    doesNotProve: left(receipt.document, byHash),
  };
}

async function importedKey(raw: Uint8Array<ArrayBuffer>): Promise<CryptoKey> {
  try {
    return await crypto.subtle.importKey("raw", raw, { name: "Ed25519" }, false, ["verify"]);
  } catch {
    throw new BundleRefused("this browser does not have Ed25519 or refuses the key; use the command");
  }
}

/** The hashes by position; a part of a chain has no gap. */
function chainOf(listed: Schemas["ChainLink"][]): Map<number, string> {
  const chain = new Map(listed.map((each) => [each.sequence, each.digest]));
  const sorted = [...chain.keys()].sort((one, other) => one - other);
  const hasGap = sorted.some((sequence, index) => sequence !== (sorted[0] ?? 0) + index);
  if (chain.size !== listed.length || hasGap)
    throw new BundleRefused("the chain has a gap, or two entries for one position");
  return chain;
}

async function checkedReceipt(
  key: CryptoKey,
  nodeId: string,
  signed: Schemas["SignedBody"],
  chain: Map<number, string>,
): Promise<Checked> {
  const { id } = signed;
  const body = decoded(signed.body, "body");
  const message = new Uint8Array([...CONTEXT, ...body]);
  if (!(await crypto.subtle.verify("Ed25519", key, decoded(signed.signature, "signature"), message)))
    throw new BundleRefused(`${id}: the node's key did not sign this receipt, or it was changed`);
  const document = documentOf(id, body);
  if (document.node_id !== nodeId) throw new BundleRefused(`${id}: this is a receipt of node ${document.node_id}`);
  const { sequence } = document;
  if (chain.get(sequence) !== (await sha256(body)))
    throw new BundleRefused(`${id}: the chain has another receipt at ${sequence}`);
  const before = sequence === 1 ? FIRST_PREVIOUS : chain.get(sequence - 1);
  if (before !== undefined && before !== document.previous)
    throw new BundleRefused(`${id}: it does not follow the receipt at ${sequence - 1}`);
  return { id, document, previousIsKnown: sequence > 1 && before !== undefined };
}

function documentOf(id: string, body: Uint8Array): ReceiptDocument {
  const text = new TextDecoder().decode(body);
  const document = JSON.parse(text) as ReceiptDocument;
  if (canonical(document) !== text || document.v !== 1)
    throw new BundleRefused(`${id}: it is not in the form in which receipts are signed`);
  const isWhole = KINDS.every((kind) => kind in document.looked) && !document.not_looked?.length;
  if (document.clean && (document.remaining.length > 0 || !isWhole))
    throw new BundleRefused(`${id}: it says clean, but something remains or was not checked`);
  return document;
}

/** The one form of a document that is signed: keys in order, no spaces, ASCII only. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value === "object" && value !== null)
    return `{${Object.entries(value)
      .sort(([one], [other]) => (one < other ? -1 : 1))
      .map(([name, each]) => `${ascii(name)}:${canonical(each)}`)
      .join(",")}}`;
  return ascii(value);
}

function ascii(value: unknown): string {
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

function proven(said: ReceiptDocument, fingerprint: string, links: number): string[] {
  const what = said.task_type === "sandbox.destroy" ? "everything" : "one owner";
  const end = said.clean ? "nothing is left: it is clean" : `${said.remaining.length} remain: it is NOT clean`;
  const reset = (said.devices ?? []).filter((each) => each.state === "reset").map((each) => each.name);
  return [
    `The key ${fingerprint} signed this receipt, and it was not changed since.`,
    `It is number ${said.sequence} in the chain of node ${said.node_id}, which signed no other for that number.`,
    `The node ended ${what} of ${said.owner} and then checked ${Object.keys(said.looked).length} kinds of resources.`,
    `It had found ${said.found.length}, removed ${said.removed.length}, and ${end}.`,
    ...(reset.length > 0 ? [`It reset ${reset.join(", ")} when nothing used them any more.`] : []),
    ...(links > 0
      ? [
          `${links} ${links === 1 ? "link of the chain is" : "links of the chain are"} proven by both of their receipts.`,
        ]
      : []),
  ];
}

function left(said: ReceiptDocument, byHash: number): string[] {
  const lines = [`That this key belongs to node ${said.node_id} is the platform's word: compare the fingerprint.`];
  if (said.host === "simulated")
    lines.push("The host is simulated: nothing ran on a machine, and nothing was checked on one.");
  if (said.host === "process")
    lines.push("The host is `process`: there was no isolation from other processes on the machine.");
  if (said.not_looked?.length) lines.push(`The node could not check: ${said.not_looked.join(", ")}.`);
  for (const each of said.devices ?? []) {
    if (each.state === "unverified") lines.push(`${each.name} was not reset: ${each.detail ?? "no reason is given"}.`);
    if (each.state === "simulated") lines.push(`${each.name} is simulated: there was no memory to clear.`);
  }
  if (said.truncated) lines.push("The lists are truncated at their limit: there were more entries.");
  if (byHash > 0)
    lines.push(`${byHash} links of the chain lead to receipts of others; the bundle has only their hashes.`);
  return lines;
}

function decoded(text: string, name: string): Uint8Array<ArrayBuffer> {
  if (!/^[A-Za-z0-9_-]*$/.test(text)) throw new BundleRefused(`${name} is not base64url`);
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (each) => each.charCodeAt(0));
}

async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", bytes);
  return [...new Uint8Array(digest)].map((each) => each.toString(16).padStart(2, "0")).join("");
}
