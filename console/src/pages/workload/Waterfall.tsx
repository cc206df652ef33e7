/** The waterfall: what each member went through, on one axis. Drag over the axis, or zoom into an operation. */
import { useNavigate } from "@tanstack/react-router";
import { type KeyboardEvent, type PointerEvent, useMemo, useRef, useState } from "react";
import type { Instance, TimelineEntry } from "../../api/client";
import { Clock, duration, useNow } from "../../parts/time";
import { Button } from "../../parts/ui";
import { type Axis, axis, endOf, type Lane, lanes, type Span } from "./waterfall";

const FILL = {
  good: "bg-good-soft border-good",
  busy: "bg-busy-soft border-busy",
  warn: "bg-warn-soft border-warn",
  bad: "bg-bad-soft border-bad",
  quiet: "bg-sunken border-line",
};

interface WaterfallProps {
  instance: Instance;
  entries: TimelineEntry[];
  range: { from?: number; to?: number };
}

export function Waterfall({ instance, entries, range }: WaterfallProps) {
  const navigate = useNavigate({ from: "/workloads/$id" });
  const now = useNow();
  const all = useMemo(() => lanes(entries), [entries]);
  const [chosen, setChosen] = useState<string>();
  const scale = useMemo(() => axis(all, now, range), [all, now, range]);
  const spans = all.flatMap((lane) => lane.rows.flat().map((span) => ({ span, lane })));
  const shown = spans.find(({ span }) => span.id === chosen) ?? spans[0];
  const zoom = (from?: number, to?: number) =>
    void navigate({ search: (before) => ({ ...before, begin: from && Math.floor(from), end: to && Math.ceil(to) }) });
  if (!shown) return <p className="p-4 text-muted">Nothing of this kind happened yet.</p>;
  return (
    <div className="space-y-3 p-4">
      <Details
        span={shown.span}
        lane={shown.lane}
        now={now}
        zoom={() => zoom(shown.span.from - 200, (shown.span.to ?? now) + 200)}
        all={range.from || range.to ? () => zoom() : undefined}
        instance={instance}
      />
      <div className="grid grid-cols-[minmax(5rem,9rem)_minmax(0,1fr)] gap-x-3">
        <span className="self-end text-xs text-muted">{duration(scale.to - scale.from)} in all</span>
        <Ruler scale={scale} zoom={zoom} />
        {/* biome-ignore lint/a11y/useSemanticElements: a grid of bars, not a set of form fields */}
        <div
          role="group"
          aria-label="Waterfall: arrow keys move between the bars"
          className="col-span-2 grid grid-cols-subgrid divide-y divide-line"
          onKeyDown={(event) => moveBetweenBars(event)}
        >
          {all.map((lane) => (
            <div key={lane.id} className="col-span-2 grid grid-cols-subgrid py-1.5">
              <span className="truncate text-xs font-medium" title={lane.name}>
                {lane.name}
              </span>
              <div className="relative space-y-0.5 overflow-hidden">
                <Idle scale={scale} />
                {lane.rows.map((row) => (
                  <div key={row[0]?.id} data-row className="relative h-4">
                    {row.map((span) => (
                      <Bar
                        key={span.id}
                        span={span}
                        scale={scale}
                        now={now}
                        isChosen={shown.span.id === span.id}
                        choose={setChosen}
                        lane={lane.name}
                      />
                    ))}
                  </div>
                ))}
              </div>
            </div>
          ))}
        </div>
      </div>
      <p className="text-xs text-muted">Hatched: nothing was done; long pauses are shortened to the same width.</p>
    </div>
  );
}

function placed(from: number, to: number) {
  return (element: HTMLElement | null) => {
    element?.style.setProperty("left", `${from * 100}%`);
    element?.style.setProperty("width", `${Math.max(0, to - from) * 100}%`);
  };
}

interface BarProps {
  span: Span;
  scale: Axis;
  now: number;
  isChosen: boolean;
  choose: (id: string) => void;
  lane: string;
}

function Bar({ span, scale, now, isChosen, choose, lane }: BarProps) {
  const end = span.to ?? (span.kind === "state" ? Math.max(scale.to, span.from) : endOf(span, now));
  if (end < scale.from || span.from > scale.to) return null;
  return (
    <button
      type="button"
      ref={placed(scale.at(span.from), scale.at(end))}
      tabIndex={isChosen ? 0 : -1}
      aria-pressed={isChosen}
      aria-label={`${lane}: ${span.label}, ${span.outcome}, ${duration((span.to ?? now) - span.from)}`}
      title={`${span.label}: ${span.outcome}, ${duration((span.to ?? now) - span.from)}`}
      onFocus={() => choose(span.id)}
      onMouseEnter={() => choose(span.id)}
      onClick={() => choose(span.id)}
      className={`absolute inset-y-0 min-w-1 truncate rounded-[3px] border-l-2 px-1 text-left font-mono text-[10px] leading-4 focus-visible:-outline-offset-2 ${FILL[span.tone]} ${
        isChosen ? "ring-1 ring-accent" : ""
      }`}
    >
      {span.label}
    </button>
  );
}

function Idle({ scale }: { scale: Axis }) {
  return scale.idle.map((each) => (
    <span
      key={each.from}
      aria-hidden
      ref={placed(scale.at(each.from), scale.at(each.to))}
      className="absolute inset-y-0 bg-[repeating-linear-gradient(45deg,var(--sunken)_0_3px,transparent_3px_6px)]"
    />
  ));
}

const TICKS = [0, 0.25, 0.5, 0.75];

/** The axis; a drag over it chooses a range. */
function Ruler({ scale, zoom }: { scale: Axis; zoom: (from?: number, to?: number) => void }) {
  const began = useRef<number | null>(null);
  const [brush, setBrush] = useState<{ from: number; to: number } | null>(null);
  const place = (event: PointerEvent<HTMLElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const end = () => {
    if (brush && brush.to - brush.from > 0.01) zoom(scale.momentAt(brush.from), scale.momentAt(brush.to));
    began.current = null;
    setBrush(null);
  };
  return (
    <div
      className="relative h-7 cursor-crosshair touch-none border-b border-line select-none"
      onPointerDown={(event) => {
        began.current = place(event);
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => {
        if (began.current === null) return;
        const here = place(event);
        setBrush({ from: Math.min(began.current, here), to: Math.max(began.current, here) });
      }}
      onPointerUp={end}
      onPointerCancel={end}
    >
      <Idle scale={scale} />
      {TICKS.map((each) => (
        <span
          key={each}
          ref={placed(each, each + 0.25)}
          className="absolute bottom-0.5 border-l border-line pl-1 max-sm:odd:hidden"
        >
          <Clock at={new Date(scale.momentAt(each)).toISOString()} />
        </span>
      ))}
      {brush && <span ref={placed(brush.from, brush.to)} className="absolute inset-y-0 bg-accent/25" />}
    </div>
  );
}

interface DetailsProps {
  span: Span;
  lane: Lane;
  now: number;
  instance: Instance;
  zoom: () => void;
  all?: () => void;
}

function Details({ span, lane, now, instance, zoom, all }: DetailsProps) {
  const navigate = useNavigate({ from: "/workloads/$id" });
  return (
    <div className="flex min-h-12 flex-wrap items-center gap-x-4 gap-y-1 rounded-md bg-sunken px-3 py-2">
      <p className="min-w-0 flex-1 basis-60">
        <span className="font-semibold">{lane.id === "operations" ? instance.name : lane.name}</span>{" "}
        <span className="font-mono text-xs break-all">{span.label}</span>: {span.outcome.replaceAll("_", " ")}
        <span className="block text-xs text-muted">
          <Clock at={new Date(span.from).toISOString()} />
          {span.to ? (
            <>
              {" "}
              to <Clock at={new Date(span.to).toISOString()} />
            </>
          ) : (
            ", still going on"
          )}
          , {duration((span.to ?? now) - span.from)}
        </span>
      </p>
      <Button onClick={zoom}>Zoom to it</Button>
      {all && <Button onClick={all}>Whole range</Button>}
      <Button onClick={() => void navigate({ search: (before) => ({ ...before, view: "raw", entry: span.entryId }) })}>
        Entry
      </Button>
    </div>
  );
}

/** Left and right in time, up and down between the rows. */
function moveBetweenBars(event: KeyboardEvent<HTMLElement>): void {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
  const bar = (event.target as HTMLElement).closest<HTMLElement>("button");
  const row = bar?.closest<HTMLElement>("[data-row]");
  if (!step || !bar || !row) return;
  event.preventDefault();
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    const bars = [...row.querySelectorAll<HTMLElement>("button")];
    bars[bars.indexOf(bar) + step]?.focus();
    return;
  }
  const rows = [...event.currentTarget.querySelectorAll<HTMLElement>("[data-row]")].filter((each) =>
    each.querySelector("button"),
  );
  const target = rows[rows.indexOf(row) + step];
  const left = bar.getBoundingClientRect().left;
  const nearest = [...(target?.querySelectorAll<HTMLElement>("button") ?? [])].sort(
    (one, other) =>
      Math.abs(one.getBoundingClientRect().left - left) - Math.abs(other.getBoundingClientRect().left - left),
  )[0];
  nearest?.focus();
}
