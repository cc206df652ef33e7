/** The logs of all members as one: followed, kept in a bounded buffer, and searched at the server. */
import { useEffect, useRef, useState } from "react";
import { answer, api, type Instance, type Schemas } from "../../api/client";

export type Line = Schemas["LogLineView"];

export interface Log {
  lines: Line[];
  gaps: Schemas["LogGapView"][];
  unread: Schemas["UnreadLogView"][];
  /** How many lines the buffer has let go. */
  dropped: number;
  /** Lines that came while the view was paused. */
  waiting: number;
  error: unknown;
  isLoaded: boolean;
  /** Of a search: whether everything that is stored was looked through. */
  isComplete: boolean;
}

export interface Search {
  grep: string;
  regex: boolean;
}

export const LINES_MAX = 10_000;
const TAIL_LINES = 1_000;
const WAIT_SECONDS = 20;
const RETRY_MS = 2_000;
const NONE: Log = {
  lines: [],
  gaps: [],
  unread: [],
  dropped: 0,
  waiting: 0,
  error: null,
  isLoaded: false,
  isComplete: false,
};

/** Lines with those that come after them; a line that did not end is continued by its program's next one. */
export function joined(before: Line[], fresh: Line[]): Line[] {
  const lines = [...before];
  for (const each of fresh) {
    const index = lines.findLastIndex((line) => line.member_id === each.member_id && line.service === each.service);
    const last = lines[index];
    if (last && !last.ends) lines[index] = { ...last, text: last.text + each.text, ends: each.ends };
    else lines.push(each);
  }
  return lines;
}

function kept(before: Log, lines: Line[]): Log {
  const over = Math.max(0, lines.length - LINES_MAX);
  return { ...before, lines: over > 0 ? lines.slice(over) : lines, dropped: before.dropped + over };
}

export function useLog(instance: Instance, member: string | undefined, search: Search | null, paused: boolean): Log {
  const [log, setLog] = useState<Log>(NONE);
  const isPaused = useRef(paused);
  const waiting = useRef<Line[]>([]);
  isPaused.current = paused;
  const grep = search?.grep ?? "";
  const regex = search?.regex ?? false;

  useEffect(() => {
    if (paused || waiting.current.length === 0) return;
    const fresh = waiting.current;
    waiting.current = [];
    setLog((before) => kept({ ...before, waiting: 0 }, joined(before.lines, fresh)));
  }, [paused]);

  useEffect(() => {
    const aborted = new AbortController();
    const path = { project_id: instance.project_id, instance_id: instance.id };
    let cursor = "";
    const take = (part: Schemas["InstanceLogView"]) => {
      const isFirst = cursor === "";
      cursor = part.next_cursor;
      if (isPaused.current && !isFirst) waiting.current = joined(waiting.current, part.items).slice(-LINES_MAX);
      setLog((before) => ({
        ...(isPaused.current && !isFirst
          ? { ...before, waiting: waiting.current.length }
          : kept(before, joined(before.lines, part.items))),
        gaps: isFirst ? part.gaps : [...before.gaps, ...part.gaps].slice(-12),
        unread: part.unread,
        error: null,
        isLoaded: true,
        isComplete: part.at_end,
      }));
    };
    const read = async () => {
      while (!aborted.signal.aborted) {
        const first = grep ? {} : { tail: TAIL_LINES };
        const next = grep ? { cursor } : { cursor, wait: WAIT_SECONDS };
        const query = { member, ...(grep ? { grep, regex } : {}), ...(cursor ? next : first) };
        try {
          const reply = api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/log", {
            params: { path, query },
            signal: aborted.signal,
          });
          const part = await answer(reply);
          if (aborted.signal.aborted) return;
          take(part);
          if (grep && part.at_end) return;
          if (part.items.length === 0 && part.unread.length > 0) await pause();
        } catch (error) {
          if (aborted.signal.aborted) return;
          setLog((before) => ({ ...before, error, isLoaded: true }));
          await pause();
        }
      }
    };
    const pause = () => new Promise((resume) => window.setTimeout(resume, RETRY_MS));
    waiting.current = [];
    setLog(NONE);
    void read();
    return () => aborted.abort();
  }, [instance.project_id, instance.id, member, grep, regex]);
  return log;
}
