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
  for (const entry of entries) {
    const key = entry.correlation_id;
    let chapter = found.get(key);
    if (!chapter) {
      chapter = { key, title: "", at: entry.at, actor: actorOf(entry), lines: [] };
      found.set(key, chapter);
    }
    if (entry.kind === "operation" && !chapter.title) chapter.title = `${capital(String(entry.data.kind ?? "change"))}`;
    if (isImportant(entry, chapter.lines.at(-1))) chapter.lines.push(entry);
  }
  return [...found.values()]
    .filter((each) => each.lines.length > 0)
    .map((each) => ({ ...each, title: each.title || titleOf(each.lines[0]) }))
    .reverse();
}

/** Audit rows and queued tasks repeat what events say; so does an event whose text is that of the line before. */
function isImportant(entry: TimelineEntry, before: TimelineEntry | undefined): boolean {
  if (entry.kind === "audit" || entry.type.endsWith(".queued")) return false;
  return before?.text !== entry.text;
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
  if (/running|ready|succeeded|active|stopped|removed|released/.test(status)) return "good";
  return status ? "busy" : "quiet";
}
