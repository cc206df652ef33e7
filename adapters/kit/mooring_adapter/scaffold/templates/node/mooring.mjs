// The client of the adapter contract: sign-in by a signed assertion, claims with their heartbeat, reports, tasks and
// correlation ids. It needs nothing but Node 18.17. The app's part is in adapter.mjs.
import { createPrivateKey, createPublicKey, randomUUID, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { setTimeout as pause } from "node:timers/promises";

const POLL_SECONDS = 20;
const WORK_MILLISECONDS = 15_000; // then the claims are renewed before the work goes on
const api = `${(process.env.MOORING_URL ?? "").replace(/\/$/, "")}/api/v1`;
const tokenUrl = process.env.MOORING_AUDIENCE ?? `${api}/oauth/token`; // as the platform knows it
const holder = `${process.env.MOORING_HOLDER ?? hostname()}-${randomUUID()}`.slice(-64);
const ending = new AbortController();

export function log(level, event, more = {}) {
  console.error(JSON.stringify({ time: new Date().toISOString(), level, event, ...more }));
}

// A response that is not a success, with the code of the platform's catalogue.
export class Refusal extends Error {
  constructor(status, problem) {
    super(`${status} ${problem.code}: ${problem.detail}`);
    const isLost = status === 404 || problem.code === "lease_lost";
    Object.assign(this, { status, isLost, isFinal: [400, 403, 413, 422].includes(status) }); // final: do not ask again
  }
}

async function send(method, path, { token, body, form, correlation, seconds = 30, ends = [] } = {}) {
  const headers = { ...(token && { Authorization: `Bearer ${token}` }), ...(body && { "Content-Type": "application/json" }) };
  if (correlation) headers["X-Correlation-ID"] = correlation;
  const content = form ? new URLSearchParams(form) : body && JSON.stringify(body);
  const signal = AbortSignal.any([AbortSignal.timeout(seconds * 1000), ...ends]);
  const response = await fetch(api + path, { method, headers, body: content, signal });
  const text = await response.text();
  const answer = text.startsWith("{") ? JSON.parse(text) : {};
  if (!response.ok) throw new Refusal(response.status, answer);
  return answer;
}

function assertion(key, kid, subject, audience) {
  const now = Math.floor(Date.now() / 1000);
  const claims = { iss: subject, sub: subject, aud: audience, iat: now, exp: now + 120, jti: randomUUID() };
  const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const parts = [encoded({ alg: "EdDSA", typ: "JWT", kid }), encoded(claims)];
  return [...parts, sign(null, Buffer.from(parts.join(".")), key).toString("base64url")].join(".");
}

// The accounts of this key: one in each project that is entitled to the app.
async function accountsOf(key) {
  const found = [];
  const half = createPublicKey(key).export({ type: "spki", format: "der" }).subarray(-32).toString("base64url");
  const audience = tokenUrl.replace("/oauth/token", "/runtime/accounts");
  let after = null;
  do {
    const body = { assertion: assertion(key, "adapter", `key:${half}`, audience), after };
    const page = await send("POST", "/runtime/accounts", { body });
    found.push(...page.accounts);
    after = page.next_after ?? null;
  } while (after);
  return found;
}

// One account: its token, its claims, and the loop that renews them and works.
class Account {
  constructor(key, { service_account_id, key_id }) {
    Object.assign(this, { key, id: service_account_id, keyId: key_id, held: new Map(), after: null }); // instance → fence
  }

  async call(method, path, options = {}) {
    for (let attempt = 0; ; attempt++) {
      try {
        this.token ??= await this.signIn();
        return await send(method, `/runtime${path}`, { ...options, token: this.token });
      } catch (error) {
        if (error.status !== 401 || attempt) throw error;
        this.token = null; // it has expired: sign in, and repeat the request
      }
    }
  }

  async signIn() {
    const signed = assertion(this.key, this.keyId, this.id, tokenUrl);
    const form = { grant_type: "urn:ietf:params:oauth:grant-type:jwt-bearer", assertion: signed };
    return (await send("POST", "/oauth/token", { form })).access_token;
  }

  async serve(advance) {
    for (let failures = 0; !ending.signal.aborted; ) {
      try {
        await this.poll(advance);
        failures = 0;
      } catch (error) {
        if (ending.signal.aborted) break;
        log("warning", "a poll failed; retrying", { reason: String(error) });
        await pause(Math.min(200 * 2 ** failures++, 5_000));
      }
    }
    const given = this.call("POST", "/releases", { body: { holder, held: this.claims() } });
    await given.catch((error) => log("warning", "cannot release the claims", { reason: `${error}` }));
  }

  claims = () => [...this.held].map(([instance_id, fence]) => ({ instance_id, fence }));

  // A poll is heartbeat, claim and news at once. Without news every instance is looked at.
  async poll(advance) {
    const body = { holder, free: 50, wait_seconds: POLL_SECONDS, held: this.claims(), after: this.after };
    const news = await this.call("POST", "/claims", { body, seconds: POLL_SECONDS + 15, ends: [ending.signal] });
    for (const { instance_id: id, fence } of news.lost) if (this.held.get(id) === fence) this.held.delete(id);
    for (const { instance_id: id, fence } of news.claims) if (fence > (this.held.get(id) ?? -1)) this.held.set(id, fence);
    const named = new Set([...news.changed, ...news.claims.map((each) => each.instance_id)]);
    const due = [...this.held.keys()].filter((id) => named.size === 0 || named.has(id));
    const rest = await Promise.all(due.map((id) => this.work(id, advance)));
    this.after = rest.every(Boolean) ? news.cursor : null; // null: what is left undone counts as changed
  }

  // Advance one instance until nothing is due; returns whether that was reached.
  async work(id, advance) {
    const fence = this.held.get(id);
    const call = (method, path, options = {}) =>
      this.call(method, `/instances/${id}${path}`, options.body ? { ...options, body: { fence, ...options.body } } : options);
    for (const until = Date.now() + WORK_MILLISECONDS; Date.now() < until && !ending.signal.aborted; ) {
      try {
        if (!(await advance(await call("GET", `?fence=${fence}`), call))) return true;
      } catch (error) {
        log("warning", "a request failed; reading the instance again", { instance: id, reason: String(error) });
        if (error.isLost) this.held.delete(id);
        if (error.isLost || error.isFinal) return true;
        await pause(200);
      }
    }
    return false;
  }
}

// Serve every account of the key until SIGTERM or SIGINT. `advance(view, call)` returns whether it did anything.
export async function serve(app, advance) {
  for (const name of ["SIGTERM", "SIGINT"]) process.once(name, () => ending.abort());
  if (!process.env.MOORING_URL) throw new Error("MOORING_URL is missing: the address of the platform");
  const key = createPrivateKey(readFileSync(process.env.MOORING_KEY_FILE ?? "adapter.pem"));
  const serving = new Map();
  while (!ending.signal.aborted) {
    const found = await accountsOf(key).catch((error) => void log("warning", "cannot list accounts; retrying", { reason: `${error}` }));
    for (const each of found ?? []) {
      if (serving.has(each.service_account_id) || !(each.apps.length === 0 || each.apps.includes(app))) continue;
      serving.set(each.service_account_id, new Account(key, each).serve(advance));
    }
    await pause(found ? 10_000 : 500, null, { signal: ending.signal }).catch(() => {});
  }
  await Promise.all(serving.values());
}
