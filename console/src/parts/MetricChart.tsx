/**
 * One figure of one GPU over time, as an SVG of attributes only: the page's policy forbids inline styles, and the table
 * beside it says the same to those who cannot see it. Charts beside each other share the moment under the pointer.
 */
import type { PointerEvent } from "react";

const WIDTH = 600;
const HEIGHT = 100;

export interface MetricSpan {
  /** Seconds since 1970. */
  from: number;
  to: number;
  step: number;
}

interface MetricChartProps {
  label: string;
  span: MetricSpan;
  at: number[];
  values: (number | null)[];
  /** The upper end of the scale. */
  max: number;
  /** What there is, beside what is used of it: drawn as a line of its own. */
  limit?: number;
  /** The points that are marked as idle. */
  idle?: boolean[];
  show: (value: number) => string;
  cursor: number | null;
  onCursor: (at: number | null) => void;
}

export function MetricChart(props: MetricChartProps) {
  const { label, span, at, values, max, limit, idle, show, cursor, onCursor } = props;
  const x = (time: number) => ((time - span.from) / (span.to - span.from)) * WIDTH;
  const y = (value: number) => HEIGHT - (Math.min(value, max) / (max || 1)) * (HEIGHT - 4) - 2;
  const index = cursor === null ? lastMeasured(values) : nearest(at, cursor, span.step);
  const value = index === null ? null : (values[index] ?? null);
  const move = (event: PointerEvent<SVGSVGElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    onCursor(span.from + share * (span.to - span.from));
  };
  return (
    <figure className="min-w-0">
      <figcaption className="mb-1 flex items-baseline justify-between gap-2 text-xs">
        <span className="text-muted">{label}</span>
        <span className="font-semibold tabular-nums">
          {value === null ? "no data" : show(value)}
          {limit !== undefined && <span className="font-normal text-muted"> of {show(limit)}</span>}
        </span>
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        className="h-16 w-full rounded border border-line bg-sunken"
        onPointerMove={move}
        onPointerLeave={() => onCursor(null)}
        aria-hidden
      >
        {idle?.map(
          (isIdle, each) =>
            isIdle && (
              <rect
                key={at[each]}
                x={x(at[each] ?? 0)}
                y={0}
                width={Math.max(1, (span.step / (span.to - span.from)) * WIDTH)}
                height={HEIGHT}
                className="fill-warn-soft"
              />
            ),
        )}
        {segments(at, values, span.step).map((points) => (
          <g key={points[0]?.time}>
            <path d={area(points, x, y)} className="fill-accent-soft" />
            <path
              d={line(points, x, y)}
              className="fill-none stroke-accent"
              strokeWidth={1.5}
              vectorEffect="non-scaling-stroke"
            />
          </g>
        ))}
        {limit !== undefined && (
          <line
            x1={0}
            x2={WIDTH}
            y1={y(limit)}
            y2={y(limit)}
            className="stroke-muted"
            strokeDasharray="4 3"
            vectorEffect="non-scaling-stroke"
          />
        )}
        {cursor !== null && (
          <line
            x1={x(cursor)}
            x2={x(cursor)}
            y1={0}
            y2={HEIGHT}
            className="stroke-ink"
            strokeWidth={1}
            vectorEffect="non-scaling-stroke"
          />
        )}
      </svg>
    </figure>
  );
}

interface Point {
  time: number;
  value: number;
}

/** The measured stretches: where a sample is missing, the line has a gap. */
function segments(at: number[], values: (number | null)[], step: number): Point[][] {
  const found: Point[][] = [];
  let last: number | null = null;
  at.forEach((time, index) => {
    const value = values[index];
    if (value === null || value === undefined) return;
    const isNew = last === null || time - last > step * 1.5;
    if (isNew) found.push([]);
    found[found.length - 1]?.push({ time, value });
    last = time;
  });
  return found;
}

type Scale = (value: number) => number;

function line(points: Point[], x: Scale, y: Scale): string {
  const places = points.map((each) => `${x(each.time).toFixed(1)} ${y(each.value).toFixed(1)}`);
  return places.length === 1 ? `M${places[0]}h3` : `M${places.join("L")}`;
}

function area(points: Point[], x: Scale, y: Scale): string {
  const first = points[0];
  const last = points[points.length - 1];
  if (!first || !last) return "";
  return `${line(points, x, y)}L${x(last.time).toFixed(1)} ${HEIGHT}L${x(first.time).toFixed(1)} ${HEIGHT}Z`;
}

function lastMeasured(values: (number | null)[]): number | null {
  for (let index = values.length - 1; index >= 0; index--) if (values[index] != null) return index;
  return null;
}

/** The point that covers this moment; none if nothing was measured there. */
function nearest(at: number[], moment: number, step: number): number | null {
  let found: number | null = null;
  at.forEach((time, index) => {
    if (
      Math.abs(time - moment) <= step &&
      (found === null || Math.abs(time - moment) < Math.abs((at[found] ?? 0) - moment))
    )
      found = index;
  });
  return found;
}
