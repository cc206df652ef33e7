/** From the raw timeline to a story: one chapter for each request, only what a person wants to know. */
import type { TimelineEntry } from "../../api/client";

export interface Chapter {
  key: string;
  title: string;
  at: string;
  actor: string;
  lines: TimelineEntry[];
}

/** Chapters, the newest first; their lines are in the order in which they happened. */
export function chapters(entries: TimelineEntry[]): Chapter[] {
  const found = new Map<string, Chapter>();
  const names = new Map<string, string>();
  for (const entry of entries) {
    const key = entry.correlation_id;
    let chapter = found.get(key);
    if (!chapter) {
      chapter = { key, title: "", at: entry.at, actor: actorOf(entry), lines: [] };
      found.set(key, chapter);
    }
    if (entry.kind === "operation" && !chapter.title) chapter.title = `${capital(String(entry.data.kind ?? "change"))}`;
    if (entry.kind === "member" && entry.subject_id) names.set(entry.subject_id, String(entry.data.name ?? ""));
    if (isImportant(entry, chapter.lines)) chapter.lines.push({ ...entry, text: readable(entry.text, names) });
  }
  return [...found.values()]
    .filter((each) => each.lines.length > 0)
    .map((each) => ({ ...each, title: each.title || titleOf(each.lines[0]) }))
    .reverse();
}

/** Audit rows, queued tasks and successful ones repeat what the other events say; the raw view has all of them. */
function isImportant(entry: TimelineEntry, before: TimelineEntry[]): boolean {
  if (entry.kind === "audit" || entry.type.endsWith(".queued")) return false;
  if (entry.kind === "task" && entry.data.status === "succeeded") return false;
  const last = before.findLast((each) => each.subject_id === entry.subject_id);
  return last === undefined || JSON.stringify(shown(last)) !== JSON.stringify(shown(entry));
}

function shown({ data }: TimelineEntry): unknown[] {
  return [data.status, data.health, data.steps_done, data.blocker];
}

/** The text with the names of members instead of their ids. */
function readable(text: string, names: Map<string, string>): string {
  return text
    .replaceAll("; (", " (")
    .replace(/\/?(mem_[0-9a-z]{26})/g, (whole, id: string) => (names.has(id) ? ` of ${names.get(id)}` : whole));
}

function titleOf(entry: TimelineEntry | undefined): string {
  return entry?.data.health ? "Observed health" : capital(entry?.kind ?? "change");
}

function actorOf(entry: TimelineEntry): string {
  return entry.actor_kind === "user" ? "asked by a person" : `by the ${entry.actor_kind.replaceAll("_", " ")}`;
}

function capital(word: string): string {
  return word.slice(0, 1).toUpperCase() + word.slice(1).replaceAll("_", " ");
}

export type Tone = "good" | "busy" | "warn" | "bad" | "quiet";

export function toneOf(entry: TimelineEntry): Tone {
  const status = String(entry.data.status ?? "");
  if (/failed|refused/.test(status)) return "bad";
  if (/blocked|degraded/.test(`${status} ${entry.data.health ?? ""}`)) return "warn";
  if (entry.kind === "operation" && status === "running") return "busy";
  if (/running|ready|succeeded|active|stopped|removed|released/.test(status)) return "good";
  return status ? "busy" : "quiet";
}
