/** What happened, live: as a story, as a waterfall of members, or raw. What it shows stands in the URL. */
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import Download from "lucide-react/icons/download";
import Pause from "lucide-react/icons/pause";
import Play from "lucide-react/icons/play";
import Radio from "lucide-react/icons/radio";
import { useMemo, useState } from "react";
import type { Instance, TimelineEntry } from "../../api/client";
import type { StreamState, Timeline } from "../../api/stream";
import { download } from "../../parts/download";
import { Choice, FilterBar } from "../../parts/Filters";
import { Button, Empty, Panel, Skeleton } from "../../parts/ui";
import { VIEWS } from "../../router";
import { RawTimeline } from "./RawTimeline";
import { Story } from "./Story";
import { Waterfall } from "./Waterfall";

const STATES: Record<StreamState, string> = {
  connecting: "connecting",
  live: "live",
  catching_up: "filling the gap",
  interrupted: "interrupted; trying again",
  ended: "ended",
};

export function TimelineTab({ instance, timeline }: { instance: Instance; timeline: Timeline }) {
  const search = useSearch({ from: "/shell/workloads/$id" });
  const { view = "story", kind, actor, member, begin, end } = search;
  const [pausedAt, setPausedAt] = useState<TimelineEntry[] | null>(null);
  const all = pausedAt ?? timeline.entries;
  const fresh = pausedAt ? timeline.entries.length + timeline.dropped - pausedAt.length : 0;
  const entries = useMemo(() => filtered(all, { kind, actor, member }), [all, kind, actor, member]);
  const save = () =>
    download(
      `${instance.name}-timeline.ndjson`,
      entries.map((each) => `${JSON.stringify(each)}\n`).join(""),
      "application/x-ndjson",
    );
  return (
    <Panel
      title="Timeline"
      aside={
        <div className="flex flex-wrap items-center gap-3">
          <StreamMark state={timeline.state} isPaused={pausedAt !== null} />
          <Button onClick={() => setPausedAt(pausedAt ? null : timeline.entries)}>
            {pausedAt ? <Play size={14} aria-hidden /> : <Pause size={14} aria-hidden />}
            {pausedAt ? `Go on (${Math.max(0, fresh)} new)` : "Pause"}
          </Button>
          <Button onClick={save} disabledReason={entries.length === 0 ? "there is nothing to save" : undefined}>
            <Download size={14} aria-hidden /> Download
          </Button>
          <Views current={view} id={instance.id} />
        </div>
      }
    >
      <TimelineFilters entries={all} />
      {timeline.dropped > 0 && (
        <Notice>
          {timeline.dropped} older entries are no longer shown;{" "}
          <code>mooring instances watch {instance.name} --all</code> has them.
        </Notice>
      )}
      {timeline.expired && (
        <Notice>The place where this page had stopped is no longer kept; it was read again from the beginning.</Notice>
      )}
      {entries.length === 0 ? (
        timeline.state === "connecting" ? (
          <Skeleton rows={6} />
        ) : all.length > 0 ? (
          <Empty title="Nothing matches the filter" />
        ) : (
          <Empty title="Nothing happened yet" command={`mooring instances watch ${instance.name} --all`} />
        )
      ) : view === "story" ? (
        <Story entries={entries} />
      ) : view === "waterfall" ? (
        <Waterfall instance={instance} entries={entries} range={{ from: begin, to: end }} />
      ) : (
        <RawTimeline entries={entries} />
      )}
    </Panel>
  );
}

function StreamMark({ state, isPaused }: { state: StreamState; isPaused: boolean }) {
  const isLive = state === "live" && !isPaused;
  return (
    <span className={`inline-flex items-center gap-1 text-xs ${isLive ? "text-good" : "text-muted"}`} role="status">
      <Radio size={14} aria-hidden className={isLive ? "animate-pulse" : ""} /> {isPaused ? "paused" : STATES[state]}
    </span>
  );
}

function Views({ current, id }: { current: string; id: string }) {
  return (
    <div className="flex overflow-hidden rounded-md border border-line text-xs">
      {VIEWS.map((each) => (
        <Link
          key={each}
          to="/workloads/$id"
          params={{ id }}
          search={(before) => ({ ...before, tab: "timeline", view: each === "story" ? undefined : each })}
          aria-current={each === current ? "true" : false}
          className={`px-2.5 py-1.5 font-medium capitalize focus-visible:-outline-offset-2 ${each === current ? "bg-accent-soft text-accent" : "text-muted hover:bg-sunken"}`}
        >
          {each}
        </Link>
      ))}
    </div>
  );
}

function Notice({ children }: { children: React.ReactNode }) {
  return <p className="bg-warn-soft px-4 py-2 text-xs text-warn">{children}</p>;
}

interface Filter {
  kind?: string;
  actor?: string;
  member?: string;
}

function TimelineFilters({ entries }: { entries: TimelineEntry[] }) {
  const navigate = useNavigate({ from: "/workloads/$id" });
  const { kind, actor, member } = useSearch({ from: "/shell/workloads/$id" });
  const kinds = useMemo(() => words(entries, (each) => each.kind), [entries]);
  const actors = useMemo(() => words(entries, (each) => each.actor_kind), [entries]);
  const names = useMemo(() => words(entries, memberName), [entries]);
  const set = (change: Filter) => void navigate({ replace: true, search: (before) => ({ ...before, ...change }) });
  return (
    <div className="border-b border-line px-4 pt-3 -mb-px">
      <FilterBar
        isFiltered={Boolean(kind || actor || member)}
        clear={() => set({ kind: undefined, actor: undefined, member: undefined })}
      >
        <Choice label="Kind" words={kinds} value={kind} onChange={(next) => set({ kind: next })} />
        <Choice label="Actor" words={actors} value={actor} onChange={(next) => set({ actor: next })} />
        <Choice label="Member" words={names} value={member} onChange={(next) => set({ member: next })} />
      </FilterBar>
    </div>
  );
}

function words(entries: TimelineEntry[], word: (entry: TimelineEntry) => string | undefined): string[] {
  return [...new Set(entries.flatMap((each) => word(each) ?? []))].sort();
}

function memberName(entry: TimelineEntry): string | undefined {
  return entry.kind === "member" && typeof entry.data.name === "string" ? entry.data.name : undefined;
}

/** The entries of a kind, an actor and a member; to a member belong its tasks and its allocation as well. */
function filtered(entries: TimelineEntry[], { kind, actor, member }: Filter): TimelineEntry[] {
  const own = new Set<unknown>();
  if (member)
    for (const each of entries) if (memberName(each) === member) own.add(each.subject_id).add(each.data.allocation_id);
  const isOf = (entry: TimelineEntry) =>
    own.has(entry.subject_id) ||
    String(entry.data.owner ?? "")
      .split("/")
      .some((part) => part && own.has(part));
  return entries.filter(
    (each) => (!kind || each.kind === kind) && (!actor || each.actor_kind === actor) && (!member || isOf(each)),
  );
}
