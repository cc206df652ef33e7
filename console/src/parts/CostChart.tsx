/**
 * Stacked bars of cost over time, one for each day or hour, and the same as a table. Drawn by hand: a dozen rectangles
 * need no library, and every colour comes from the style sheet, as the page's policy demands.
 */
import { type RefObject, useEffect, useRef, useState } from "react";
import type { CostLine } from "../api/queries/money";
import { microText, unitText } from "./amount";

interface CostChartProps {
  lines: CostLine[];
  step: "day" | "hour";
  currency: string;
  /** What the hours that are not booked yet cost so far; drawn apart, with a dashed line. */
  estimatedMicro: number;
  label: string;
}

const FILLS = ["fill-accent", "fill-busy", "fill-warn", "fill-good", "fill-bad", "fill-muted"];
const SWATCHES = ["bg-accent", "bg-busy", "bg-warn", "bg-good", "bg-bad", "bg-muted"];
const WIDTH_FIRST = 720;
const HEIGHT = 180;
const BAR_MAX = 44;
const LABEL_WIDTH = 64;
const STEP_MS = { day: 86_400_000, hour: 3_600_000 };
const BARS_MAX = 124;
const DAYS = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

interface Bar {
  at: string;
  parts: { unit: string; micro: number }[];
  total: number;
}

export function CostChart({ lines, step, currency, estimatedMicro, label }: CostChartProps) {
  const [frame, width] = useWidth();
  const own = lines.filter((each) => each.currency === currency && each.key !== null && each.charged_micro !== 0);
  const units = [...new Set(own.map((each) => each.unit ?? "other"))];
  const bars = barsOf(own, step, estimatedMicro > 0);
  const open = estimatedMicro > 0 ? bars[bars.length - 1] : undefined;
  const most = Math.max(1, ...bars.map((each) => each.total + (each === open ? estimatedMicro : 0)));
  if (bars.length === 0) return <p className="px-4 py-8 text-center text-muted">Nothing is booked in this time yet.</p>;
  const slot = width / bars.length;
  const thick = Math.min(BAR_MAX, slot * 0.72);
  const every = Math.ceil(bars.length / Math.max(2, Math.floor(width / LABEL_WIDTH)));
  const left = (index: number) => index * slot + (slot - thick) / 2;
  return (
    <figure className="space-y-3 p-4" ref={frame}>
      <svg
        viewBox={`0 -16 ${width} ${HEIGHT + 38}`}
        role="img"
        aria-label={`${label}: ${bars.length} ${step === "day" ? "days" : "hours"}, the most ${microText(most, currency)}. The table below has the figures.`}
        className="block h-auto w-full"
      >
        <text x={0} y={-4} className="fill-muted text-[11px]">
          {microText(most, currency)}
        </text>
        <line x1={0} x2={width} y1={0} y2={0} className="stroke-line" strokeDasharray="2 4" />
        <line x1={0} x2={width} y1={HEIGHT} y2={HEIGHT} className="stroke-line" />
        {bars.map((bar, index) => (
          <g key={bar.at}>
            <Stack bar={bar} units={units} x={left(index)} width={thick} most={most} />
            {bar === open && (
              <rect
                x={left(index) + 1}
                y={HEIGHT - ((bar.total + estimatedMicro) / most) * HEIGHT}
                width={thick - 2}
                height={(estimatedMicro / most) * HEIGHT}
                strokeDasharray="4 3"
                className="fill-none stroke-muted"
              >
                <title>{`estimated, not booked yet: ${microText(estimatedMicro, currency)}`}</title>
              </rect>
            )}
            {index % every === 0 && index * slot + slot / 2 >= LABEL_WIDTH / 4 && (
              <text x={index * slot + slot / 2} y={HEIGHT + 16} textAnchor="middle" className="fill-muted text-[11px]">
                {shortTime(bar.at, step)}
              </text>
            )}
          </g>
        ))}
      </svg>
      <figcaption className="flex flex-wrap gap-x-4 gap-y-1 text-xs text-muted">
        {units.map((unit, index) => (
          <span key={unit} className="flex items-center gap-1.5">
            <span aria-hidden className={`size-2.5 rounded-sm ${SWATCHES[index % SWATCHES.length]}`} />
            {unitText(unit)}
          </span>
        ))}
        {estimatedMicro > 0 && (
          <span className="flex items-center gap-1.5">
            <span aria-hidden className="size-2.5 rounded-sm border border-dashed border-muted" />
            estimated, not booked yet
          </span>
        )}
      </figcaption>
      <details>
        <summary className="text-xs text-muted">The same as a table</summary>
        <Twin bars={bars} units={units} step={step} currency={currency} estimatedMicro={estimatedMicro} label={label} />
      </details>
    </figure>
  );
}

function Stack(props: { bar: Bar; units: string[]; x: number; width: number; most: number }) {
  const { bar, units, x, width, most } = props;
  let below = 0;
  return bar.parts.map((part) => {
    const height = (Math.max(0, part.micro) / most) * HEIGHT;
    below += height;
    const fill = FILLS[units.indexOf(part.unit) % FILLS.length];
    return <rect key={part.unit} x={x} y={HEIGHT - below} width={width} height={height} className={fill} />;
  });
}

interface TwinProps {
  bars: Bar[];
  units: string[];
  step: "day" | "hour";
  currency: string;
  estimatedMicro: number;
  label: string;
}

function Twin({ bars, units, step, currency, estimatedMicro, label }: TwinProps) {
  const cell = "px-2 py-1 text-right tabular-nums";
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by the keyboard
    <section className="mt-2 max-h-72 overflow-auto" tabIndex={0} aria-label={`${label}, as a table`}>
      <table className="w-full text-xs">
        <thead>
          <tr>
            <th scope="col" className="px-2 py-1 text-left font-medium text-muted">
              {step === "day" ? "Day (UTC)" : "Hour (UTC)"}
            </th>
            {units.map((unit) => (
              <th key={unit} scope="col" className="px-2 py-1 text-right font-medium text-muted">
                {unitText(unit)}
              </th>
            ))}
            <th scope="col" className="px-2 py-1 text-right font-medium text-muted">
              Sum
            </th>
          </tr>
        </thead>
        <tbody className="divide-y divide-line">
          {bars
            .filter((each) => each.parts.length > 0)
            .map((bar) => (
              <tr key={bar.at}>
                <th scope="row" className="px-2 py-1 text-left font-normal whitespace-nowrap">
                  {bar.at.slice(0, step === "day" ? 10 : 16).replace("T", " ")}
                </th>
                {units.map((unit) => {
                  const part = bar.parts.find((each) => each.unit === unit);
                  return (
                    <td key={unit} className={cell}>
                      {part ? microText(part.micro, currency) : "–"}
                    </td>
                  );
                })}
                <td className={cell}>{microText(bar.total, currency)}</td>
              </tr>
            ))}
          {estimatedMicro > 0 && (
            <tr>
              <th scope="row" className="px-2 py-1 text-left font-normal">
                not booked yet (estimate)
              </th>
              <td colSpan={units.length + 1} className={cell}>
                {microText(estimatedMicro, currency)}
              </td>
            </tr>
          )}
        </tbody>
      </table>
    </section>
  );
}

/** The width of the chart on the screen, so that its text has the size of all other text. */
function useWidth(): [RefObject<HTMLElement | null>, number] {
  const frame = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(WIDTH_FIRST);
  useEffect(() => {
    const svg = frame.current?.querySelector("svg");
    if (!svg) return;
    const observer = new ResizeObserver(() => setWidth(Math.max(200, Math.round(svg.clientWidth))));
    observer.observe(svg);
    return () => observer.disconnect();
  });
  return [frame, width];
}

/**
 * One bar for each step from the first to the last with cost, and up to now if something is not booked yet. A time
 * without cost is an empty place, not left out.
 */
function barsOf(lines: CostLine[], step: "day" | "hour", upToNow: boolean): Bar[] {
  const known = new Map<string, Bar>();
  for (const each of lines) {
    const at = each.key ?? "";
    const bar = known.get(at) ?? { at, parts: [], total: 0 };
    bar.parts.push({ unit: each.unit ?? "other", micro: each.charged_micro });
    bar.total += each.charged_micro;
    known.set(at, bar);
  }
  const present = `${new Date(Math.floor(Date.now() / STEP_MS[step]) * STEP_MS[step]).toISOString().slice(0, 19)}Z`;
  if (upToNow && !known.has(present)) known.set(present, { at: present, parts: [], total: 0 });
  const times = [...known.keys()].sort();
  const [first, last] = [times[0], times[times.length - 1]];
  if (first === undefined || last === undefined) return [];
  const count = (Date.parse(last) - Date.parse(first)) / STEP_MS[step] + 1;
  if (count > BARS_MAX) return times.map((at) => known.get(at) as Bar);
  return Array.from({ length: count }, (_, number) => {
    const at = `${new Date(Date.parse(first) + number * STEP_MS[step]).toISOString().slice(0, 19)}Z`;
    return known.get(at) ?? { at, parts: [], total: 0 };
  });
}

function shortTime(at: string, step: "day" | "hour"): string {
  return step === "day" ? DAYS.format(new Date(at)) : at.slice(11, 16);
}

/** The share of a row in the whole, as a thin bar behind nothing: the figure stands beside it. */
export function ShareBar({ share }: { share: number }) {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return (
    <svg
      viewBox="0 0 100 6"
      preserveAspectRatio="none"
      aria-hidden="true"
      className="inline-block h-1.5 w-24 align-middle"
    >
      <rect width={100} height={6} rx={3} className="fill-sunken" />
      <rect width={width} height={6} rx={3} className="fill-accent" />
    </svg>
  );
}
