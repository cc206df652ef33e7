/**
 * The live timeline of one instance: server-sent events, kept in a bounded buffer.
 *
 * Each event is named by its type, and an EventSource hears only names that it knows; so the stream is read with
 * fetch. After an interruption it continues behind the last cursor: nothing is missed, nothing comes twice. Entries
 * that arrive together are shown together. A hidden tab closes the stream and continues later.
 */
import { useEffect, useRef, useState } from "react";
import type { TimelineEntry } from "./client";

export type StreamState = "connecting" | "live" | "catching_up" | "interrupted" | "ended";

export interface Timeline {
  entries: TimelineEntry[];
  state: StreamState;
  /** How many old entries the buffer has let go. */
  dropped: number;
  /** Whether the server no longer had the place to continue from, so that all was read again. */
  expired: boolean;
}

const EMPTY: Timeline = { entries: [], state: "connecting", dropped: 0, expired: false };

const ENTRIES_MAX = 5_000;
const RETRY_MS = 1_500;
const BATCH_MS = 50;

export interface ServerEvent {
  id: string;
  event: string;
  data: string;
}

/** The complete events of what was received so far, and the rest that is not complete. */
export function parseEvents(text: string): { events: ServerEvent[]; rest: string } {
  const blocks = text.split("\n\n");
  const rest = blocks.pop() ?? "";
  const events = blocks.map((block) => {
    const found: ServerEvent = { id: "", event: "", data: "" };
    for (const line of block.split("\n")) {
      const colon = line.indexOf(": ");
      const name = line.slice(0, colon);
      if (name === "id" || name === "event" || name === "data") found[name] += line.slice(colon + 2);
    }
    return found;
  });
  return { events, rest };
}

export function useTimeline(projectId: string, instanceId: string, onEntries: () => void): Timeline {
  const [timeline, setTimeline] = useState<Timeline>(EMPTY);
  const notify = useRef(onEntries);
  notify.current = onEntries;

  useEffect(() => {
    let cursor = "beginning";
    let timer = 0;
    let retry = 0;
    let running: AbortController | null = null;
    let waiting: TimelineEntry[] = [];
    const setState = (state: StreamState) => setTimeline((before) => ({ ...before, state }));

    const flush = () => {
      timer = 0;
      const fresh = waiting;
      waiting = [];
      setTimeline((before) => {
        const all = [...before.entries, ...fresh];
        const over = Math.max(0, all.length - ENTRIES_MAX);
        return { ...before, entries: over > 0 ? all.slice(over) : all, dropped: before.dropped + over };
      });
      notify.current();
    };

    const take = (event: ServerEvent): boolean => {
      if (event.id) cursor = event.id;
      if (event.event === "closed") return false;
      if (event.data) {
        waiting.push(JSON.parse(event.data) as TimelineEntry);
        if (timer === 0) timer = window.setTimeout(flush, BATCH_MS);
      }
      return true;
    };

    const read = async (signal: AbortSignal): Promise<StreamState> => {
      const query = new URLSearchParams({ app_instance_id: instanceId, cursor });
      const response = await fetch(`/api/v1/projects/${projectId}/timeline/stream?${query}`, { signal });
      if (response.status === 410) {
        cursor = "beginning";
        setTimeline({ ...EMPTY, expired: true });
      }
      if (response.status === 401 || response.status === 403 || response.status === 404) return "ended";
      if (!response.ok || response.body === null) return "interrupted";
      setState("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "interrupted";
        const parsed = parseEvents(text + value);
        text = parsed.rest;
        if (!parsed.events.every(take)) return "ended";
      }
    };

    const open = async () => {
      const own = new AbortController();
      running = own;
      const state = await read(own.signal).catch((): StreamState => "interrupted");
      if (own.signal.aborted) return;
      running = null;
      setState(state);
      if (state === "interrupted") retry = window.setTimeout(open, RETRY_MS);
    };

    const close = () => {
      window.clearTimeout(retry);
      running?.abort();
      running = null;
    };

    const onVisibility = () => {
      if (document.hidden) close();
      else if (running === null) {
        setState("catching_up");
        void open();
      }
    };

    setTimeline(EMPTY);
    void open();
    document.addEventListener("visibilitychange", onVisibility);
    return () => {
      document.removeEventListener("visibilitychange", onVisibility);
      window.clearTimeout(timer);
      close();
    };
  }, [projectId, instanceId]);

  return timeline;
}
