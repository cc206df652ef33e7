/** What happened, live: as a story folded by request, or raw with every event and audit row. */
import { Link, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import Radio from "lucide-react/icons/radio";
import { useMemo, useRef, useState } from "react";
import type { Instance, TimelineEntry } from "../../api/client";
import { useMeaning } from "../../api/queries/reference";
import type { StreamState, Timeline } from "../../api/stream";
import { Clock, duration } from "../../parts/time";
import { CopyButton, Empty, Panel, Skeleton } from "../../parts/ui";
import { type Chapter, chapters, toneOf } from "./story";

const STATES: Record<StreamState, string> = {
  connecting: "connecting",
  live: "live",
  interrupted: "interrupted; trying again",
  ended: "ended",
};

export function TimelineTab({ instance, timeline }: { instance: Instance; timeline: Timeline }) {
  const { view = "story" } = useSearch({ from: "/shell/workloads/$id" });
  const { entries, state, dropped } = timeline;
  return (
    <Panel
      title="Timeline"
      aside={
        <div className="flex items-center gap-3">
          <span
            className={`inline-flex items-center gap-1 text-xs ${state === "live" ? "text-good" : "text-muted"}`}
            role="status"
          >
            <Radio size={14} aria-hidden className={state === "live" ? "animate-pulse" : ""} /> {STATES[state]}
          </span>
          <div className="flex overflow-hidden rounded-md border border-line text-xs">
            {(["story", "raw"] as const).map((each) => (
              <Link
                key={each}
                to="/workloads/$id"
                params={{ id: instance.id }}
                search={{ tab: "timeline", view: each === "story" ? undefined : each }}
                aria-current={each === view ? "true" : false}
                className={`px-2.5 py-1.5 font-medium capitalize ${each === view ? "bg-accent-soft text-accent" : "text-muted hover:bg-sunken"}`}
              >
                {each}
              </Link>
            ))}
          </div>
        </div>
      }
    >
      {dropped > 0 && (
        <p className="bg-warn-soft px-4 py-2 text-xs text-warn">
          {dropped} older entries are no longer shown; <code>mooring instances watch {instance.name} --all</code> has
          them.
        </p>
      )}
      {entries.length === 0 ? (
        state === "connecting" ? (
          <Skeleton rows={6} />
        ) : (
          <Empty title="Nothing happened yet" command={`mooring instances watch ${instance.name} --all`} />
        )
      ) : view === "story" ? (
        <Story entries={entries} />
      ) : (
        <Raw entries={entries} />
      )}
    </Panel>
  );
}

function Story({ entries }: { entries: TimelineEntry[] }) {
  const story = useMemo(() => chapters(entries), [entries]);
  return (
    <ol className="p-4" aria-label="Story, the newest first">
      {story.map((each) => (
        <ChapterItem key={each.key} chapter={each} />
      ))}
    </ol>
  );
}

const DOT = { good: "bg-good", busy: "bg-busy", warn: "bg-warn", bad: "bg-bad", quiet: "bg-line" };

function ChapterItem({ chapter }: { chapter: Chapter }) {
  const total = new Date(chapter.lines.at(-1)?.at ?? chapter.at).getTime() - new Date(chapter.at).getTime();
  const begun = new Date(chapter.at).getTime();
  return (
    <li className="border-l-2 border-line pb-6 pl-5 last:pb-1">
      <div className="relative mb-2 flex flex-wrap items-baseline gap-x-3">
        <span
          className="absolute top-1.5 -left-[1.65rem] size-3 rounded-full border-2 border-panel bg-accent"
          aria-hidden
        />
        <h3 className="font-semibold">{chapter.title}</h3>
        <span className="text-xs text-muted">
          <Clock at={chapter.at} /> · {duration(total)} · {chapter.actor}
        </span>
      </div>
      <ol className="space-y-1">
        {chapter.lines.map((each) => (
          <li
            key={each.id}
            className="grid grid-cols-[0.5rem_4rem_minmax(0,1fr)] items-baseline gap-x-2 max-sm:grid-cols-[0.5rem_3.2rem_minmax(0,1fr)]"
          >
            <span aria-hidden className={`mt-1.5 size-2 self-start rounded-full ${DOT[toneOf(each)]}`} />
            <span className="font-mono text-xs text-muted tabular-nums" title={each.at}>
              +{duration(new Date(each.at).getTime() - begun)}
            </span>
            <span className="break-words">{each.text}</span>
          </li>
        ))}
      </ol>
    </li>
  );
}

function Raw({ entries }: { entries: TimelineEntry[] }) {
  const scroller = useRef<HTMLDivElement>(null);
  const meaning = useMeaning();
  const [open, setOpen] = useState<string | null>(null);
  const newest = useMemo(() => [...entries].reverse(), [entries]);
  const rows = useVirtualizer({
    count: newest.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => 37,
    getItemKey: (index) => newest[index]?.id ?? index,
    overscan: 20,
  });
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section ref={scroller} tabIndex={0} aria-label="All entries, the newest first" className="h-[60vh] overflow-auto">
      <div ref={(element) => element?.style.setProperty("height", `${rows.getTotalSize()}px`)} className="relative">
        {rows.getVirtualItems().map((row) => {
          const entry = newest[row.index];
          if (!entry) return null;
          return (
            <div
              key={row.key}
              data-index={row.index}
              ref={(element) => {
                element?.style.setProperty("transform", `translateY(${row.start}px)`);
                rows.measureElement(element);
              }}
              className="absolute top-0 left-0 w-full border-b border-line"
            >
              <button
                type="button"
                aria-expanded={open === entry.id}
                onClick={() => setOpen(open === entry.id ? null : entry.id)}
                className="flex w-full items-baseline gap-3 px-4 py-2 text-left hover:bg-sunken"
              >
                <Clock at={entry.at} />
                <span className="w-20 shrink-0 text-xs text-muted">{entry.kind}</span>
                <span className="min-w-0 flex-1 truncate">{entry.text}</span>
                <span
                  className="hidden truncate font-mono text-xs text-muted md:inline"
                  title={meaning("event", entry.type)}
                >
                  {entry.type}
                </span>
              </button>
              {open === entry.id && (
                <div className="relative mx-4 mb-3 rounded-md bg-sunken p-3">
                  <pre className="overflow-x-auto font-mono text-xs">{JSON.stringify(entry, null, 2)}</pre>
                  <div className="absolute top-1 right-1">
                    <CopyButton text={JSON.stringify(entry)} label="Copy the entry" />
                  </div>
                </div>
              )}
            </div>
          );
        })}
      </div>
    </section>
  );
}
