/** What happens, live; with a correlation id: the events and audit rows of one request in one column of time. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import type { Schemas } from "../api/client";
import { type EventsState, useEvents } from "../api/events";
import { flagOf, type Place } from "../api/place";
import { audit, eventsOf } from "../api/queries/records";
import { useMeaning } from "../api/queries/reference";
import { FilterBar, TextFilter } from "../parts/Filters";
import { PlacePicker, usePlace } from "../parts/place";
import { Status } from "../parts/Status";
import { Clock, duration } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, CommandLine, CopyButton, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import type { EventsSearch } from "../routes/records";

type EventView = Schemas["EventView"];

export function Events() {
  useTitle("Events");
  const search = useSearch({ from: "/shell/events" });
  const navigate = useNavigate({ from: "/events" });
  const { place, word, options } = usePlace(search.at);
  const set = (change: EventsSearch, replace = false) =>
    void navigate({ replace, search: (before) => ({ ...before, ...change }) });
  const flags = `${place ? ` ${flagOf(place)}` : ""}${search.correlation ? ` --correlation ${search.correlation}` : ""}`;
  return (
    <>
      <PageHead title="Events" sub="What happens, as it happens; or everything that followed from one request.">
        <PlacePicker options={options} value={word} onChange={(next) => set({ at: next })} />
      </PageHead>
      <FilterBar
        isFiltered={Boolean(search.correlation || search.instance)}
        clear={() => set({ correlation: undefined, instance: undefined })}
      >
        <TextFilter
          label="Correlation id"
          value={search.correlation}
          onChange={(correlation) => set({ correlation }, true)}
        />
        <TextFilter label="Workload id" value={search.instance} onChange={(instance) => set({ instance }, true)} />
      </FilterBar>
      {!place ? (
        <Skeleton />
      ) : search.correlation ? (
        <Followed place={place} correlation={search.correlation} />
      ) : (
        <Tail key={`${word} ${search.instance}`} place={place} instance={search.instance} word={word} />
      )}
      <div className="mt-5 grid gap-2 lg:grid-cols-2">
        <CommandLine command={`mooring events --follow${flags}`} />
        <CommandLine command={`mooring events -o json --limit 0${flags} | jq -c '.[]' > events.ndjson`} />
      </div>
    </>
  );
}

const STATES: Record<EventsState, string> = {
  connecting: "connecting…",
  live: "live",
  paused: "paused",
  interrupted: "interrupted; it tries again",
  ended: "ended",
};

function Tail({ place, instance, word }: { place: Place; instance: string | undefined; word: string | undefined }) {
  const [isPaused, setPaused] = useState(false);
  const { events, state, dropped, error } = useEvents(place, instance, isPaused);
  if (error) return <ProblemBox error={error} />;
  return (
    <Panel
      title="Live"
      aside={
        <span className="flex items-center gap-3 text-xs text-muted">
          <span role="status">{STATES[state]}</span>
          <Button onClick={() => setPaused(!isPaused)}>{isPaused ? "Continue" : "Pause"}</Button>
        </span>
      }
    >
      {dropped && (
        <p className="border-b border-line px-4 py-2 text-xs text-muted">
          Older events are not shown here; the command line reads all that are kept.
        </p>
      )}
      {events.length === 0 ? (
        state === "connecting" ? (
          <Skeleton rows={6} />
        ) : (
          <Empty title="Nothing happened yet" command="mooring events --follow">
            Launch an app, and see each step here.
          </Empty>
        )
      ) : (
        <ol aria-label="Events, the newest first" className="divide-y divide-line">
          {events.map((each) => (
            <EventRow key={each.id} event={each} word={word} />
          ))}
        </ol>
      )}
    </Panel>
  );
}

function EventRow({ event, word }: { event: EventView; word: string | undefined }) {
  const meaning = useMeaning()("event", event.type);
  return (
    <li className="flex flex-wrap items-baseline gap-x-4 gap-y-1 px-4 py-2">
      <Clock at={event.occurred_at} />
      <details className="min-w-0 flex-1">
        <summary className="break-words" title={meaning?.replaceAll("`", "")}>
          <span className="font-medium">{event.type}</span> <Subject event={event} />
        </summary>
        <pre className="mt-2 max-h-80 overflow-auto rounded-md bg-sunken p-3 font-mono text-xs whitespace-pre-wrap">
          {event.data_withheld
            ? "The platform learns that this happened in a tenant, not what: its data is withheld."
            : JSON.stringify(event.data, null, 2)}
        </pre>
      </details>
      <Link
        to="/events"
        search={{ at: word, correlation: event.correlation_id }}
        className="link max-w-64 truncate font-mono text-xs"
      >
        {event.correlation_id}
      </Link>
    </li>
  );
}

function Subject({ event }: { event: EventView }) {
  const name = event.data.name ?? event.data.slug;
  return (
    <span className="text-muted">
      {typeof name === "string" ? name : <span className="font-mono text-xs">{event.subject_id}</span>}
      {typeof event.data.status === "string" && ` is ${event.data.status}`}
    </span>
  );
}

interface Entry {
  id: string;
  at: string;
  kind: "event" | "audit" | "task";
  text: string;
  subject: string;
  outcome?: string;
  data: unknown;
}

/** Everything that has this correlation id: the request's audit rows, its events, and the tasks of nodes among them. */
function Followed({ place, correlation }: { place: Place; correlation: string }) {
  const events = useQuery(eventsOf(place, correlation));
  const rows = useQuery(audit(place, { correlation_id: correlation }, 200));
  const error = events.error ?? rows.error;
  if (error) return <ProblemBox error={error} />;
  if (!events.data || !rows.data) return <Skeleton rows={6} />;
  const entries: Entry[] = [
    ...events.data.items.map(
      (each): Entry => ({
        id: each.id,
        at: each.occurred_at,
        kind: each.noun === "task" ? "task" : "event",
        text: each.type,
        subject: each.subject_id,
        data: each.data,
      }),
    ),
    ...rows.data.items.map(
      (each): Entry => ({
        id: each.id,
        at: each.occurred_at,
        kind: "audit",
        text: each.action,
        subject: each.subject_id ?? "",
        outcome: each.outcome,
        data: { actor: each.actor_id, reason: each.reason, before: each.before, after: each.after },
      }),
    ),
  ].sort((one, other) => one.at.localeCompare(other.at));
  const first = entries[0];
  return (
    <Panel
      title={`${entries.length} entries`}
      aside={
        <span className="flex items-center font-mono text-xs text-muted">
          <span className="break-all">{correlation}</span>
          <CopyButton text={correlation} label="Copy the correlation id" />
        </span>
      }
    >
      {!first ? (
        <Empty title="Nothing here has this correlation id" command={`mooring audit --correlation ${correlation}`}>
          The events and the audit trail of this place were read. It may belong to another place, or retention deleted
          it.
        </Empty>
      ) : (
        <ol aria-label="What followed, the oldest first" className="divide-y divide-line">
          {entries.map((each) => (
            <li key={each.id} className="flex flex-wrap items-baseline gap-x-4 gap-y-1 px-4 py-2">
              <Clock at={each.at} />
              <span className="w-16 text-right font-mono text-xs text-muted tabular-nums">
                +{duration(Date.parse(each.at) - Date.parse(first.at))}
              </span>
              <span className="w-12 text-xs text-muted">{each.kind}</span>
              <details className="min-w-0 flex-1">
                <summary className="break-words">
                  <span className="font-medium">{each.text}</span>{" "}
                  <span className="font-mono text-xs text-muted">{each.subject}</span>
                </summary>
                <pre className="mt-2 max-h-80 overflow-auto rounded-md bg-sunken p-3 font-mono text-xs whitespace-pre-wrap">
                  {JSON.stringify(each.data, null, 2)}
                </pre>
              </details>
              {each.outcome && <Status kind="outcome" value={each.outcome} />}
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}
