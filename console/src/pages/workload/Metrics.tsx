/** What the GPUs do: utilisation, memory, power and temperature of each, with what idling costs. */
import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import AlertTriangle from "lucide-react/icons/triangle-alert";
import { useState } from "react";
import type { Instance, Schemas } from "../../api/client";
import { METRIC_RANGES, type MetricRange, members, metrics } from "../../api/queries/runtime";
import { MetricChart, type MetricSpan } from "../../parts/MetricChart";
import { Ago, Clock, money } from "../../parts/time";
import { Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

type Slot = Schemas["SlotMetricsView"];
const GIB = 1024 ** 3;
const IDLE_PERCENT = 5;
const SILENT_SECONDS = 180;
const RANGES = Object.keys(METRIC_RANGES) as MetricRange[];

export function Metrics({ instance }: { instance: Instance }) {
  const { range = "1h" } = useSearch({ from: "/shell/workloads/$id" });
  const found = useQuery(metrics(instance, range));
  const team = useQuery(members(instance));
  const [cursor, setCursor] = useState<number | null>(null);
  const names = new Map((team.data?.items ?? []).map((each) => [each.allocation_id, each.name]));
  if (found.error && !found.data) return <ProblemBox error={found.error} retry={() => void found.refetch()} />;
  if (!found.data) return <Skeleton rows={8} />;
  const { slots, step_seconds } = found.data;
  const span: MetricSpan = { from: seconds(found.data.since), to: seconds(found.data.until), step: step_seconds };
  return (
    <div className="space-y-4">
      <div className="flex flex-wrap items-center justify-between gap-3">
        <Summary slots={slots} />
        <RangePicker id={instance.id} range={range} />
      </div>
      {slots.length === 0 ? (
        <Panel>
          <Empty title="Nothing was measured in this time" command={`mooring instances metrics get ${instance.name}`}>
            <p>
              GPUs are sampled while the workload has them, and kept for 30 days. A workload without GPUs, and one whose
              nodes have an older agent, has no figures.
            </p>
          </Empty>
        </Panel>
      ) : (
        slots.map((slot) => (
          <SlotPanel
            key={`${slot.node_id} ${slot.index} ${slot.allocation_id}`}
            slot={slot}
            member={names.get(slot.allocation_id ?? "")}
            span={span}
            cursor={cursor}
            onCursor={setCursor}
            isNow={instance.status === "running"}
          />
        ))
      )}
      {found.data.truncated && <p className="text-warn">There are more GPUs than fit here: choose a longer time.</p>}
      <p className="h-5 text-xs text-muted" aria-hidden>
        {cursor !== null && (
          <>
            At <Clock at={new Date(cursor * 1_000).toISOString()} />; one point is {step_seconds / 60} min.
          </>
        )}
      </p>
    </div>
  );
}

function RangePicker({ id, range }: { id: string; range: MetricRange }) {
  return (
    <nav aria-label="Time" className="flex rounded-md border border-line">
      {RANGES.map((each) => (
        <Link
          key={each}
          to="/workloads/$id"
          params={{ id }}
          search={{ tab: "metrics", range: each === "1h" ? undefined : each }}
          aria-current={each === range ? "true" : undefined}
          className={`px-3 py-1 text-xs font-medium ${each === range ? "bg-accent-soft text-accent" : "text-muted hover:bg-sunken"}`}
        >
          {each}
        </Link>
      ))}
    </nav>
  );
}

/** What was held and what was used of it, as two marks; and what the idle part cost. */
function Summary({ slots }: { slots: Slot[] }) {
  const held = slots.reduce((sum, each) => sum + each.measured_seconds, 0) / 3_600;
  const used = slots.reduce((sum, each) => sum + (mean(each) / 100) * each.measured_seconds, 0) / 3_600;
  if (held === 0) return <span />;
  const idle = idleCosts(slots);
  return (
    <div className="min-w-0 space-y-1">
      <p>
        <strong className="tabular-nums">{gpuTime(held)}</strong> allocated,{" "}
        <strong className="tabular-nums">{gpuTime(used)}</strong> used
        {idle && <span className="text-warn">; idling cost {idle}</span>}
      </p>
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" className="h-1.5 w-full max-w-96" aria-hidden>
        <rect width={100} height={6} className="fill-line" />
        <rect width={(used / held) * 100} height={6} className="fill-accent" />
      </svg>
    </div>
  );
}

function idleCosts(slots: Slot[]): string {
  const byCurrency = new Map<string, number>();
  for (const { idle_seconds, price_minor_per_gpu_hour: price, currency } of slots)
    if (price && currency) byCurrency.set(currency, (byCurrency.get(currency) ?? 0) + (idle_seconds / 3_600) * price);
  return [...byCurrency]
    .filter(([, minor]) => minor >= 1)
    .map(([currency, minor]) => money(minor, currency))
    .join(" and ");
}

interface SlotPanelProps {
  slot: Slot;
  member: string | undefined;
  span: MetricSpan;
  cursor: number | null;
  onCursor: (at: number | null) => void;
  isNow: boolean;
}

function SlotPanel({ slot, member, span, cursor, onCursor, isNow }: SlotPanelProps) {
  const series = (name: string) => slot.series[name] ?? [];
  const total = Math.max(0, ...series("memory_total_bytes").map((each) => each ?? 0));
  const shared = { span, at: slot.at, cursor, onCursor };
  const idle = series("utilisation_percent").map((each) => each !== null && each < IDLE_PERCENT);
  const isSilent = isNow && slot.last_at !== null && span.to - seconds(slot.last_at) > SILENT_SECONDS;
  return (
    <Panel>
      <div className="space-y-3 p-4">
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
          <h2>
            {member ?? "GPU"} · GPU {slot.index}
          </h2>
          <span className="text-xs text-muted">{slot.simulated ? "" : slot.gpu_model}</span>
          {slot.simulated && <Mark word="simulated" tone="bg-busy-soft text-busy" />}
          <Errors slot={slot} />
          {slot.idle_seconds > 0 && (
            <span className="text-xs text-warn">
              idle {minutes(slot.idle_seconds)} of {minutes(slot.measured_seconds)}
            </span>
          )}
          {isSilent && slot.last_at && (
            <span className="flex items-center gap-1 text-xs text-bad">
              <AlertTriangle size={13} aria-hidden /> no data since <Ago at={slot.last_at} />
            </span>
          )}
        </div>
        <div className="grid gap-4 sm:grid-cols-2 xl:grid-cols-4">
          <MetricChart
            {...shared}
            label="Utilisation"
            values={series("utilisation_percent")}
            max={100}
            idle={idle}
            show={(value) => `${Math.round(value)} %`}
          />
          <MetricChart
            {...shared}
            label="Memory"
            values={series("memory_used_bytes")}
            max={total || 1}
            limit={total || undefined}
            show={(value) => `${(value / GIB).toFixed(1)} GiB`}
          />
          <MetricChart
            {...shared}
            label="Power"
            values={series("power_watts")}
            max={Math.max(500, ...series("power_watts").map((each) => each ?? 0))}
            show={(value) => `${Math.round(value)} W`}
          />
          <MetricChart
            {...shared}
            label="Temperature"
            values={series("temperature_celsius")}
            max={110}
            show={(value) => `${Math.round(value)} °C`}
          />
        </div>
        <Table slot={slot} />
      </div>
    </Panel>
  );
}

function Mark({ word, tone }: { word: string; tone: string }) {
  return <span className={`rounded-full px-2 py-0.5 text-xs font-medium ${tone}`}>{word}</span>;
}

function Errors({ slot }: { slot: Slot }) {
  const worst = (name: string) => Math.max(0, ...(slot.series[name] ?? []).map((each) => each ?? 0));
  const [ecc, xid] = [worst("ecc_errors"), worst("xid")];
  if (ecc === 0 && xid === 0) return null;
  const words = [xid > 0 && `XID ${xid}`, ecc > 0 && `${ecc} ECC errors`].filter(Boolean).join(", ");
  return <Mark word={words} tone="bg-bad-soft text-bad" />;
}

const COLUMNS: [string, string, (value: number) => string][] = [
  ["Utilisation", "utilisation_percent", (value) => `${value.toFixed(0)} %`],
  ["Highest", "utilisation_max_percent", (value) => `${value.toFixed(0)} %`],
  ["Memory", "memory_used_bytes", (value) => `${(value / GIB).toFixed(1)} GiB`],
  ["Power", "power_watts", (value) => `${value.toFixed(0)} W`],
  ["Temperature", "temperature_celsius", (value) => `${value.toFixed(0)} °C`],
];

/** The same figures as a table, the newest first. */
function Table({ slot }: { slot: Slot }) {
  const order = slot.at.map((_, index) => index).reverse();
  return (
    <details>
      <summary className="text-xs text-muted">As a table</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls is reached by the keyboard */}
      <section className="mt-2 max-h-72 overflow-auto" tabIndex={0} aria-label={`Figures of GPU ${slot.index}`}>
        <table className="w-full text-xs tabular-nums">
          <thead>
            <tr className="text-left text-muted">
              <th className="py-1 pr-4 font-medium">Time</th>
              {COLUMNS.map(([head]) => (
                <th key={head} className="py-1 pr-4 text-right font-medium">
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {order.map((index) => (
              <tr key={slot.at[index]} className="border-t border-line">
                <td className="py-1 pr-4">
                  <Clock at={new Date((slot.at[index] ?? 0) * 1_000).toISOString()} />
                </td>
                {COLUMNS.map(([head, name, show]) => {
                  const value = slot.series[name]?.[index];
                  return (
                    <td key={head} className="py-1 pr-4 text-right">
                      {value == null ? "no data" : show(value)}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </details>
  );
}

function mean(slot: Slot): number {
  const values = (slot.series.utilisation_percent ?? []).filter((each) => each !== null);
  return values.length === 0 ? 0 : values.reduce((sum, each) => sum + each, 0) / values.length;
}

const gpuTime = (hours: number): string =>
  hours < 1 ? `${Math.round(hours * 60)} GPU-minutes` : `${hours.toFixed(1)} GPU-hours`;
const seconds = (at: string): number => new Date(at).getTime() / 1_000;
const minutes = (value: number): string =>
  value < 7_200 ? `${Math.round(value / 60)} min` : `${(value / 3_600).toFixed(1)} h`;
