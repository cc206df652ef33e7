/**
 * The timeline as spans on lanes: operations first, then a lane for each member with its states and its tasks.
 *
 * All of it comes from the entries of the timeline, so it is right with the first of them and grows with each. Time in
 * which nothing was done is compressed: a cluster that ran for a week shows its launch and its drain side by side.
 */
import type { TimelineEntry } from "../../api/client";
import type { Tone } from "./chapters";

export interface Span {
  id: string;
  /** The entry that began it, and that the details lead to. */
  entryId: string;
  label: string;
  kind: "operation" | "state" | "task" | "allocation";
  from: number;
  /** Without an end it is still going on. */
  to: number | undefined;
  outcome: string;
  tone: Tone;
}

export interface Lane {
  id: string;
  name: string;
  /** Spans that do not overlap share a row. */
  rows: Span[][];
}

interface Subject {
  name: string;
  allocationId: string;
}

const OPEN_STATES = new Set(["ready", "degraded", "drained", "failed", "running"]);
const END_OF_OPERATION = /^(succeeded|failed|cancelled)$/;

export function lanes(entries: TimelineEntry[]): Lane[] {
  const members = subjects(entries);
  const memberOf = new Map([...members].map(([id, each]) => [each.allocationId, id]));
  const spans = new Map<string, Span[]>([["operations", []]]);
  for (const id of members.keys()) spans.set(id, []);
  const open = new Map<string, Span>();
  const begin = (lane: string, key: string, span: Span) => {
    open.set(key, span);
    spans.get(lane)?.push(span);
  };
  for (const entry of entries) {
    if (entry.kind === "audit" || !entry.subject_id) continue;
    const at = new Date(entry.at).getTime();
    const status = String(entry.data.status ?? "");
    const known = open.get(entry.subject_id);
    const base = { entryId: entry.id, from: at, to: undefined };
    if (entry.kind === "operation") {
      if (!known)
        begin("operations", entry.subject_id, {
          ...base,
          id: entry.subject_id,
          label: String(entry.data.kind ?? "operation"),
          kind: "operation",
          outcome: status,
          tone: "busy",
        });
      const span = open.get(entry.subject_id) as Span;
      span.outcome = status;
      span.tone = toneOf(status);
      if (END_OF_OPERATION.test(status)) span.to = at;
    } else if (entry.kind === "member") {
      if (known && known.label === status) continue;
      if (known) known.to = at;
      if (status === "removed") continue;
      begin(entry.subject_id, entry.subject_id, {
        ...base,
        id: `${entry.subject_id} ${entry.id}`,
        label: status,
        kind: "state",
        outcome: status,
        tone: toneOf(status),
      });
    } else if (entry.kind === "task") {
      const lane = laneOf(String(entry.data.owner ?? ""), members, memberOf);
      if (!lane) continue;
      if (!known)
        begin(lane, entry.subject_id, {
          ...base,
          id: entry.subject_id,
          label: stepOf(String(entry.data.step ?? entry.data.type ?? "task")),
          kind: "task",
          outcome: "queued",
          tone: "busy",
        });
      const span = open.get(entry.subject_id) as Span;
      if (entry.type.endsWith(".finished")) {
        span.to = at;
        span.outcome = status;
        span.tone = toneOf(status);
      }
    } else if (entry.kind === "allocation") {
      const lane = memberOf.get(entry.subject_id);
      if (!lane) continue;
      const isOver = /\.(active|released|failed|lost)$/.test(entry.type);
      if (!known && !isOver)
        begin(lane, entry.subject_id, {
          ...base,
          id: `${entry.subject_id} ${entry.id}`,
          label: /requested|placed/.test(entry.type) ? "capacity" : "release of capacity",
          kind: "allocation",
          outcome: entry.type.split(".").at(-1) ?? "",
          tone: "busy",
        });
      if (known && isOver) {
        known.to = at;
        known.outcome = entry.type.split(".").at(-1) ?? "";
        known.tone = toneOf(known.outcome);
        open.delete(entry.subject_id);
      }
    }
  }
  return [...spans].map(([id, each]) => ({
    id,
    name: id === "operations" ? "Operations" : (members.get(id)?.name ?? id),
    rows: packed(each),
  }));
}

function subjects(entries: TimelineEntry[]): Map<string, Subject> {
  const found = new Map<string, Subject>();
  for (const { kind, subject_id: id, data } of entries)
    if (kind === "member" && id && !found.has(id))
      found.set(id, { name: String(data.name ?? id), allocationId: String(data.allocation_id ?? "") });
  return found;
}

/** An owner is an allocation, or an allocation and a member. */
function laneOf(owner: string, members: Map<string, Subject>, memberOf: Map<string, string>): string | undefined {
  const [allocation = "", member = ""] = owner.split("/");
  return members.has(member) ? member : memberOf.get(allocation);
}

function stepOf(step: string): string {
  return step.replace(/\/mem_[0-9a-z]{26}/, "").replace(/\/1$/, "");
}

function toneOf(status: string): Tone {
  if (/failed|refused|lost/.test(status)) return "bad";
  if (/blocked|degraded|cancelled/.test(status)) return "warn";
  if (/ready|succeeded|active|released/.test(status)) return "good";
  return "busy";
}

function packed(spans: Span[]): Span[][] {
  const rows: Span[][] = [];
  const states = spans.filter((each) => each.kind === "state");
  if (states.length > 0) rows.push(states);
  for (const span of spans.filter((each) => each.kind !== "state").sort((one, other) => one.from - other.from)) {
    const free = rows.slice(states.length > 0 ? 1 : 0).find((row) => (row.at(-1)?.to ?? Infinity) <= span.from);
    if (free) free.push(span);
    else rows.push([span]);
  }
  return rows;
}

export interface Axis {
  from: number;
  to: number;
  /** Where a moment lies, from 0 to 1. */
  at: (moment: number) => number;
  /** The moment at a place; the inverse of `at`. */
  momentAt: (place: number) => number;
  idle: { from: number; to: number }[];
}

const IDLE_SHARE = 0.03;
const IDLE_MIN_MS = 4_000;

/** An axis on which each long pause takes a small, equal part, and the rest is to scale. */
export function axis(all: Lane[], now: number, range: { from?: number; to?: number }): Axis {
  const spans = all.flatMap((lane) => lane.rows.flat());
  const from = range.from ?? Math.min(...spans.map((each) => each.from), now);
  const last = Math.max(...spans.map((each) => endOf(each, now)), from + 1);
  const to = Math.max(range.to ?? last, from + 1);
  const idle = pauses(spans, now, from, to);
  const busy = to - from - idle.reduce((sum, each) => sum + each.to - each.from, 0);
  const scale = (1 - idle.length * IDLE_SHARE) / Math.max(busy, 1);
  const knots: [number, number][] = [[from, 0]];
  const push = (moment: number, isIdle: boolean) => {
    const [before, place] = knots.at(-1) as [number, number];
    knots.push([moment, place + (isIdle ? IDLE_SHARE : (moment - before) * scale)]);
  };
  for (const each of idle) {
    push(each.from, false);
    push(each.to, true);
  }
  push(to, false);
  return {
    from,
    to,
    idle,
    at: (moment) => between(knots, moment, 0, 1),
    momentAt: (place) => between(knots, place, 1, 0),
  };
}

/** Where a span ends on the axis. A state that lasts is not work: it does not stretch the axis. */
export function endOf(span: Span, now: number): number {
  if (span.to !== undefined) return span.to;
  return span.kind === "state" && OPEN_STATES.has(span.label) ? span.from : now;
}

function pauses(spans: Span[], now: number, from: number, to: number): { from: number; to: number }[] {
  const busy = spans
    .filter((each) => !(each.kind === "state" && OPEN_STATES.has(each.label)))
    .map((each) => [Math.max(each.from, from), Math.min(each.to ?? now, to)] as const)
    .filter(([start, end]) => end >= start)
    .sort(([one], [other]) => one - other);
  const found: { from: number; to: number }[] = [];
  let reached = from;
  const least = Math.max(IDLE_MIN_MS, (to - from) * IDLE_SHARE);
  for (const [start, end] of [...busy, [to, to] as const]) {
    if (start - reached > least) found.push({ from: reached, to: start });
    reached = Math.max(reached, end);
  }
  return found
    .sort((one, other) => other.to - other.from - (one.to - one.from))
    .slice(0, 12)
    .sort((one, other) => one.from - other.from);
}

function between(knots: [number, number][], value: number, given: 0 | 1, wanted: 0 | 1): number {
  const index = knots.findIndex((each) => each[given] >= value);
  if (index <= 0) return (index === 0 ? knots[0] : knots.at(-1))?.[wanted] ?? 0;
  const low = knots[index - 1] as [number, number];
  const high = knots[index] as [number, number];
  const share = high[given] === low[given] ? 0 : (value - low[given]) / (high[given] - low[given]);
  return low[wanted] + share * (high[wanted] - low[wanted]);
}
