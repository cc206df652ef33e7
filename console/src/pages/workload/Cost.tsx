/** What the workload cost, from which meters, and what it will. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import type { Instance } from "../../api/client";
import { type Cost as CostData, type CostLine, cost, costOverTime } from "../../api/queries/money";
import { microText, quantityText, unitText } from "../../parts/amount";
import { CostChart } from "../../parts/CostChart";
import { type Column, DataTable } from "../../parts/DataTable";
import { CommandLine, Definition, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

const PERIOD_MAX_MS = 366 * 86_400_000;
const HOURS_MS = 3 * 86_400_000;

export function Cost({ instance }: { instance: Instance }) {
  const search = useSearch({ from: "/shell/workloads/$id" });
  const navigate = useNavigate({ from: "/workloads/$id" });
  const scope = { tenant: null, project: instance.project_id };
  const since = sinceOf(instance);
  const isYoung = Date.now() - Date.parse(instance.created_at) < HOURS_MS;
  const step = search.step ?? (isYoung ? "hour" : "day");
  const question = { instanceId: instance.id, since };
  const byUnit = useQuery(cost(scope, { ...question, by: "unit" }));
  const overTime = useQuery(costOverTime(scope, { ...question, by: `${step}_unit` }));
  const error = byUnit.error ?? overTime.error;
  if (error && !byUnit.data) return <ProblemBox error={error} retry={() => void byUnit.refetch()} />;
  if (!byUnit.data || !overTime.data) return <Skeleton rows={6} />;
  const command = <CommandLine command={`mooring usage ${instance.name} --by day_unit`} />;
  if (byUnit.data.totals.length === 0)
    return (
      <Panel>
        <Empty title="It has cost nothing yet" command={`mooring usage ${instance.name}`}>
          An allocation is charged from active until its release was requested; usage of an app when it is reported.
        </Empty>
      </Panel>
    );
  return (
    <div className="space-y-5">
      {byUnit.data.totals.map((total) => (
        <Panel
          key={total.currency}
          title={byUnit.data.totals.length > 1 ? `Cost, ${total.currency}` : "Cost"}
          aside={
            <select
              aria-label="Bars"
              className="field w-auto py-1 text-xs"
              value={step}
              onChange={(event) =>
                void navigate({
                  search: (before) => ({ ...before, step: event.target.value === "day" ? "day" : "hour" }),
                })
              }
            >
              <option value="day">by day</option>
              <option value="hour">by hour</option>
            </select>
          }
        >
          <Sums cost={byUnit.data} currency={total.currency} />
          <CostChart
            label={`Cost of ${instance.name} by ${step}`}
            lines={overTime.data.items}
            step={step}
            currency={total.currency}
            estimatedMicro={total.estimated_micro}
          />
        </Panel>
      ))}
      <DataTable
        label="Cost by meter"
        title="By meter"
        columns={COLUMNS}
        query={{ data: byUnit.data, error: null }}
        rowKey={(each) => `${each.key} ${each.currency}`}
        empty={<p className="px-4 py-6 text-muted">No hour is booked yet; the estimate is above.</p>}
      />
      {command}
    </div>
  );
}

/** The beginning of the hour in which it was launched; the API reads at most a year. */
function sinceOf(instance: Instance): string {
  const earliest = Date.now() - PERIOD_MAX_MS + 3_600_000;
  const hour = new Date(Math.max(Date.parse(instance.created_at), earliest));
  hour.setUTCMinutes(0, 0, 0);
  return hour.toISOString();
}

function Sums({ cost: found, currency }: { cost: CostData; currency: string }) {
  const total = found.totals.find((each) => each.currency === currency);
  const forecast = found.forecasts.find((each) => each.currency === currency);
  if (!total) return null;
  return (
    <dl className="grid grid-cols-2 gap-4 border-b border-line p-4 sm:grid-cols-4">
      <Definition label="Cost so far">
        <span className="text-lg font-semibold tabular-nums">{microText(total.total_micro, currency)}</span>
      </Definition>
      <Definition label="of which booked">{microText(total.charged_micro, currency)}</Definition>
      <Definition label="Estimated, not booked yet">{microText(total.estimated_micro, currency)}</Definition>
      <Definition label="Now, an hour">
        {forecast && forecast.micro_per_hour > 0 ? (
          <>
            {microText(forecast.micro_per_hour, currency)}
            <span className="block text-xs text-muted">{microText(forecast.month_micro, currency)} this month</span>
          </>
        ) : (
          "nothing: no clock runs"
        )}
      </Definition>
    </dl>
  );
}

const COLUMNS: Column<CostLine>[] = [
  {
    head: "Meter",
    narrow: "line",
    cell: (each) => <span className="font-medium">{unitText(each.unit ?? "other")}</span>,
  },
  { head: "Quantity", isNumber: true, cell: (each) => quantityText(each.quantity_micro, each.unit) },
  {
    head: "Charged",
    isNumber: true,
    cell: (each) => (each.currency === null ? "–" : microText(each.charged_micro, each.currency)),
  },
  {
    head: "Already paid by the allocation",
    isNumber: true,
    cell: (each) =>
      each.covered_micro > 0 ? (
        <del className="text-muted">{microText(each.covered_micro, each.currency)}</del>
      ) : (
        <span className="text-muted">–</span>
      ),
  },
];
