/** The live tail of a place's events: the newest page, then what a waiting request brings. Bounded, and it can pause. */
import { useEffect, useState } from "react";
import { answer, isProblem, type Schemas } from "./client";
import { apiAt, HERE, type Place } from "./place";

export type EventsState = "connecting" | "live" | "paused" | "interrupted" | "ended";

interface Tail {
  events: Schemas["EventView"][];
  state: EventsState;
  dropped: boolean;
  error: unknown;
}

const EVENTS_MAX = 200;
const WAIT_SECONDS = 25;
const RETRY_MS = 2_000;

/** The newest first. While it is paused nothing is read; it continues behind the last one, so nothing is missed. */
export function useEvents(place: Place, instanceId: string | undefined, isPaused: boolean): Tail {
  const [tail, setTail] = useState<Tail>({ events: [], state: "connecting", dropped: false, error: null });
  const [cursor] = useState<{ next?: string }>({});
  const { scope, id } = place;

  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const read = async () => {
      const isFirst = cursor.next === undefined;
      const query = {
        app_instance_id: instanceId,
        limit: 100,
        ...(isFirst ? { newest: true } : { cursor: cursor.next, wait: WAIT_SECONDS }),
      };
      try {
        const page = await answer(
          apiAt({ scope, id }).GET("/api/v1/tenants/{tenant_id}/events", {
            params: { path: HERE, query },
            signal: stop.signal,
          }),
        );
        if (stop.signal.aborted) return;
        cursor.next = page.next_cursor;
        setTail((before) => {
          const all = [...[...page.items].reverse(), ...before.events];
          const dropped = before.dropped || all.length > EVENTS_MAX;
          return { events: all.slice(0, EVENTS_MAX), state: "live", dropped, error: null };
        });
        timer = window.setTimeout(read, 0);
      } catch (error) {
        if (stop.signal.aborted) return;
        const isOver = isProblem(error, 401) || isProblem(error, 403) || isProblem(error, 404);
        setTail((before) => ({ ...before, state: isOver ? "ended" : "interrupted", error: isOver ? error : null }));
        if (!isOver) timer = window.setTimeout(read, RETRY_MS);
      }
    };
    if (isPaused) setTail((before) => ({ ...before, state: "paused" }));
    else void read();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [scope, id, instanceId, isPaused, cursor]);

  return tail;
}
