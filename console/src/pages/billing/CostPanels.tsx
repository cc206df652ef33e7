/** Cost of a month: the sums, bars over time by unit, and a breakdown by what one chooses. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import type { Scope } from "../../api/queries/identity";
import { type Cost, type CostBy, type CostLine, cost, costOverTime } from "../../api/queries/money";
import { microText, monthText, periodOf, quantityText, recentMonths, unitText } from "../../parts/amount";
import { CostChart, ShareBar } from "../../parts/CostChart";
import { type Column, DataTable } from "../../parts/DataTable";
import { CommandLine, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { type BillingSearch, COST_BY } from "../../routes/money";

const MONTHS_BACK = 12;
const DAYS_FOR_HOURS = 2;

interface CostPanelsProps {
  scope: Scope;
  search: BillingSearch;
  set: (change: BillingSearch) => void;
}

export function CostPanels({ scope, search, set }: CostPanelsProps) {
  const by: CostBy = search.by ?? "project";
  const period = periodOf(search.month);
  const found = useQuery(cost(scope, { by, ...period, cursor: search.cursor }));
  const isShort = search.month === undefined && new Date().getUTCDate() <= DAYS_FOR_HOURS;
  const step = (search.step ?? (isShort ? "hour" : "day")) as "day" | "hour";
  const overTime = useQuery(costOverTime(scope, { by: `${step}_unit`, ...period }));
  const currencies = found.data?.totals.map((each) => each.currency) ?? [];
  return (
    <div className="space-y-5">
      <div className="flex flex-wrap items-center gap-2">
        <select
          aria-label="Month"
          className="field w-auto"
          value={search.month ?? ""}
          onChange={(event) => set({ month: event.target.value || undefined })}
        >
          {recentMonths(MONTHS_BACK).map((month, back) => (
            <option key={month} value={back === 0 ? "" : month}>
              {monthText(month)}
              {back === 0 && " (so far)"}
            </option>
          ))}
        </select>
        <span className="text-xs text-muted">Months and hours are of UTC.</span>
      </div>
      {found.error && !found.data ? (
        <ProblemBox error={found.error} retry={() => void found.refetch()} />
      ) : !found.data ? (
        <Skeleton rows={6} />
      ) : found.data.totals.length === 0 ? (
        <Panel>
          <Empty title="Nothing costs anything in this month" command="mooring cost">
            What runs appears here within seconds as an estimate, and is booked two minutes after each hour.
          </Empty>
        </Panel>
      ) : (
        <>
          <Totals cost={found.data} />
          {currencies.map((currency) => (
            <Panel
              key={currency}
              title={`Cost by ${step} and unit${currencies.length > 1 ? `, ${currency}` : ""}`}
              aside={
                <select
                  aria-label="Bars"
                  className="field w-auto py-1 text-xs"
                  value={step}
                  onChange={(event) => set({ step: event.target.value as "day" | "hour" })}
                >
                  <option value="day">by day</option>
                  <option value="hour">by hour</option>
                </select>
              }
            >
              {overTime.data ? (
                <>
                  <CostChart
                    label={`Cost by ${step}`}
                    lines={overTime.data.items}
                    step={step}
                    currency={currency}
                    estimatedMicro={found.data.totals.find((each) => each.currency === currency)?.estimated_micro ?? 0}
                  />
                  {overTime.data.isCut && (
                    <p className="px-4 pb-4 text-xs text-warn">More bars than this page draws; choose days.</p>
                  )}
                </>
              ) : overTime.error ? (
                <ProblemBox error={overTime.error} />
              ) : (
                <Skeleton />
              )}
            </Panel>
          ))}
          <Breakdown cost={found.data} by={by} search={search} set={set} />
        </>
      )}
      <details>
        <summary className="text-xs text-muted">The same from the command line</summary>
        <div className="mt-2">
          <CommandLine command={costCommand(by, search)} />
        </div>
      </details>
    </div>
  );
}

function costCommand(by: CostBy, search: BillingSearch): string {
  const period = periodOf(search.month);
  return [`mooring cost --by ${by}`, search.project && `--project ${search.project}`]
    .concat(period.since && `--since ${period.since}`, period.until && `--until ${period.until}`)
    .filter(Boolean)
    .join(" ");
}

/** The sums that are never mixed up: booked, estimated, forecast; what is covered stands apart. */
export function Totals({ cost: found }: { cost: Cost }) {
  return (
    <div className="grid grid-cols-2 gap-3 sm:gap-4 lg:grid-cols-4">
      {found.totals.map((total) => {
        const forecast = found.forecasts.find((each) => each.currency === total.currency);
        return [
          <Figure
            key="total"
            label="Total"
            value={microText(total.total_micro, total.currency)}
            note={`booked ${microText(total.charged_micro, total.currency)}`}
          />,
          <Figure
            key="estimated"
            label="Estimated, not booked yet"
            value={microText(total.estimated_micro, total.currency)}
            note={found.estimated ? `since ${found.estimated.since.slice(11, 16)} UTC` : "every hour is booked"}
          />,
          <Figure
            key="forecast"
            label="Forecast for the month"
            value={forecast ? microText(forecast.month_micro, forecast.currency) : "–"}
            note={
              forecast
                ? `${microText(forecast.micro_per_hour, forecast.currency)} an hour, if ${forecast.assumes}`
                : "nothing runs"
            }
          />,
          <Figure
            key="covered"
            label="Covered usage"
            value={<CoveredAmount micro={total.covered_micro} currency={total.currency} />}
            note="already paid by the allocation; in no sum"
          />,
        ];
      })}
    </div>
  );
}

function Figure({ label, value, note }: { label: string; value: React.ReactNode; note: string }) {
  return (
    <Panel className="p-4">
      <p className="text-xs text-muted">{label}</p>
      <p className="mt-1 text-xl font-semibold tabular-nums">{value}</p>
      <p className="mt-1 text-xs text-muted">{note}</p>
    </Panel>
  );
}

/** What usage would have cost, struck through: the allocation paid for it. */
export function CoveredAmount({ micro, currency }: { micro: number; currency: string | null }) {
  if (micro === 0) return <span className="text-muted">–</span>;
  return (
    <del className="text-muted" title="already paid by the allocation">
      {microText(micro, currency)}
    </del>
  );
}

function Breakdown({ cost: found, by, search, set }: { cost: Cost; by: CostBy } & Omit<CostPanelsProps, "scope">) {
  const whole = new Map(found.totals.map((each) => [each.currency, each.charged_micro]));
  return (
    <DataTable
      label={`Cost by ${by}`}
      title={`By ${by}`}
      aside={
        <select
          aria-label="Sum by"
          className="field w-auto py-1 text-xs"
          value={by}
          onChange={(event) => set({ by: COST_BY.find((each) => each === event.target.value) })}
        >
          {COST_BY.map((each) => (
            <option key={each} value={each}>
              by {each}
            </option>
          ))}
        </select>
      }
      columns={lineColumns(by, whole)}
      query={{ data: found, error: null }}
      rowKey={(each) => `${each.key} ${each.currency} ${each.unit}`}
      empty={<p className="px-4 py-6 text-muted">No hour of this month is booked yet; the estimate is above.</p>}
      pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
    />
  );
}

const NO_KEY: Partial<Record<CostBy, string>> = {
  sku: "usage of apps, which has no SKU",
  allocation: "usage of apps, which has no allocation",
  instance: "without an instance",
  app: "capacity without an app",
};

export function lineColumns(by: CostBy | Schemas["OverviewBy"], whole: Map<string, number>): Column<CostLine>[] {
  return [
    { head: by === "unit" ? "Unit" : by.toUpperCase().slice(0, 1) + by.slice(1), narrow: "line", cell: named(by) },
    {
      head: "Charged",
      isNumber: true,
      cell: (each) => microText(each.charged_micro, each.currency),
    },
    {
      head: "Share",
      narrow: "hidden",
      cell: (each) => {
        const sum = whole.get(each.currency ?? "") ?? 0;
        return sum > 0 && <ShareBar share={each.charged_micro / sum} />;
      },
    },
    {
      head: "Quantity",
      isNumber: true,
      cell: (each) => <span className="text-muted">{quantityText(each.quantity_micro, each.unit)}</span>,
    },
    {
      head: "Covered",
      isNumber: true,
      narrow: "hidden",
      cell: (each) => <CoveredAmount micro={each.covered_micro} currency={each.currency} />,
    },
  ];
}

function named(by: string) {
  return (line: CostLine) => {
    if (line.key === null) return <span className="text-muted">{NO_KEY[by as CostBy] ?? "other"}</span>;
    if (by === "instance")
      return (
        <Link
          to="/workloads/$id"
          params={{ id: line.key }}
          search={{ tab: "cost" }}
          className="font-medium hover:underline"
        >
          {line.name}
        </Link>
      );
    return <span className="font-medium">{by === "unit" ? unitText(line.key) : line.name}</span>;
  };
}
