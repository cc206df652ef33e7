/** Every event and audit row. Open one for all of its data; pin two to see the time between them. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import Pin from "lucide-react/icons/pin";
import { useEffect, useMemo, useRef } from "react";
import type { TimelineEntry } from "../../api/client";
import { useMeaning } from "../../api/queries/reference";
import { Clock, duration } from "../../parts/time";
import { Button, CopyButton } from "../../parts/ui";

const SEARCH = { from: "/shell/workloads/$id" } as const;

export function RawTimeline({ entries }: { entries: TimelineEntry[] }) {
  const scroller = useRef<HTMLDivElement>(null);
  const { entry: open, pins = [] } = useSearch(SEARCH);
  const navigate = useNavigate({ from: "/workloads/$id" });
  const newest = useMemo(() => [...entries].reverse(), [entries]);
  const rows = useVirtualizer({
    count: newest.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => 37,
    getItemKey: (index) => newest[index]?.id ?? index,
    overscan: 20,
  });
  const place = newest.findIndex((each) => each.id === open);
  const shown = useRef<string>(undefined);
  useEffect(() => {
    if (open === undefined || place < 0 || shown.current === open) return;
    shown.current = open;
    rows.scrollToIndex(place, { align: "center" });
  }, [open, place, rows]);
  const toggle = (id: string) => {
    shown.current = id;
    void navigate({ replace: true, search: (before) => ({ ...before, entry: open === id ? undefined : id }) });
  };
  const pin = (id: string) => {
    const next = pins.includes(id) ? pins.filter((each) => each !== id) : [...pins.slice(-1), id];
    void navigate({ replace: true, search: (before) => ({ ...before, pins: next.length > 0 ? next : undefined }) });
  };
  return (
    <>
      {pins.length > 0 && <Between pins={pins} entries={entries} unpin={pin} />}
      <section
        ref={scroller}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
        tabIndex={0}
        aria-label="All entries, the newest first"
        className="h-[60vh] overflow-auto"
      >
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
                <EntryRow
                  entry={entry}
                  isOpen={open === entry.id}
                  isPinned={pins.includes(entry.id)}
                  toggle={() => toggle(entry.id)}
                  pin={() => pin(entry.id)}
                />
              </div>
            );
          })}
        </div>
      </section>
    </>
  );
}

interface EntryRowProps {
  entry: TimelineEntry;
  isOpen: boolean;
  isPinned: boolean;
  toggle: () => void;
  pin: () => void;
}

function EntryRow({ entry, isOpen, isPinned, toggle, pin }: EntryRowProps) {
  const meaning = useMeaning();
  const text = JSON.stringify(entry, null, 2);
  const link = () => {
    const url = new URL(window.location.href);
    url.searchParams.set("tab", "timeline");
    url.searchParams.set("view", "raw");
    url.searchParams.set("entry", entry.id);
    return url.href;
  };
  return (
    <>
      <button
        type="button"
        aria-expanded={isOpen}
        onClick={toggle}
        className="flex w-full items-baseline gap-3 px-4 py-2 text-left hover:bg-sunken focus-visible:-outline-offset-2"
      >
        <Clock at={entry.at} />
        <span className="w-20 shrink-0 text-xs text-muted">{entry.kind}</span>
        <span className="min-w-0 flex-1 truncate">{entry.text}</span>
        {isPinned && <Pin size={13} aria-label="pinned" className="shrink-0 self-center text-accent" />}
        <span className="hidden truncate font-mono text-xs text-muted md:inline" title={meaning("event", entry.type)}>
          {entry.type}
        </span>
      </button>
      {isOpen && (
        <div className="mx-4 mb-3 rounded-md bg-sunken p-3">
          <div className="mb-2 flex flex-wrap items-center gap-2">
            <Button onClick={pin} aria-pressed={isPinned}>
              <Pin size={14} aria-hidden /> {isPinned ? "Unpin" : "Pin"}
            </Button>
            <span className="flex items-center text-xs text-muted">
              Link <CopyButton text={link()} label="Copy a link to the entry" />
            </span>
            <span className="flex items-center text-xs text-muted">
              Entry <CopyButton text={text} label="Copy the entry" />
            </span>
          </div>
          <pre className="overflow-x-auto font-mono text-xs">{text}</pre>
        </div>
      )}
    </>
  );
}

interface BetweenProps {
  pins: string[];
  entries: TimelineEntry[];
  unpin: (id: string) => void;
}

/** The pinned entries, and the time that passed between them. */
function Between({ pins, entries, unpin }: BetweenProps) {
  const found = pins
    .flatMap((id) => entries.find((each) => each.id === id) ?? [])
    .sort((one, other) => one.at.localeCompare(other.at));
  const [first, second] = found;
  const passed = first && second && new Date(second.at).getTime() - new Date(first.at).getTime();
  return (
    <div className="flex flex-wrap items-center gap-x-4 gap-y-1 border-b border-line bg-accent-soft px-4 py-2">
      {found.map((each) => (
        <span key={each.id} className="flex min-w-0 items-center gap-2">
          <Clock at={each.at} /> <span className="max-w-72 truncate text-xs">{each.text}</span>
          <button type="button" className="link text-xs" onClick={() => unpin(each.id)}>
            Unpin
          </button>
        </span>
      ))}
      <span role="status" className="font-semibold">
        {passed === undefined ? "Pin a second entry to see the time between them" : `Δ ${duration(passed)}`}
      </span>
    </div>
  );
}
