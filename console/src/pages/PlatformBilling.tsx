/** What all tenants cost, for the platform's staff: totals without names of instances, statements, and the proof. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { billingOverview, platformStatements, type Statement } from "../api/queries/money";
import { microText, monthText, periodOf, recentMonths } from "../parts/amount";
import { type Column, DataTable } from "../parts/DataTable";
import { Tabs } from "../parts/Tabs";
import { useTitle } from "../parts/title";
import { CommandLine, Empty, PageHead } from "../parts/ui";
import { OVERVIEW_BY, PLATFORM_BILLING_TABS, type PlatformBillingSearch } from "../routes/money";
import { lineColumns } from "./billing/CostPanels";
import { Prove } from "./billing/Prove";
import { StatementBadge } from "./billing/StatementBadge";

interface TabProps {
  search: PlatformBillingSearch;
  set: (change: PlatformBillingSearch) => void;
}

export function PlatformBilling() {
  useTitle("Billing of all tenants");
  const search = useSearch({ from: "/shell/platform-billing" });
  const navigate = useNavigate({ from: "/platform-billing" });
  const set = (change: PlatformBillingSearch) =>
    void navigate({ search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const tab = search.tab ?? "overview";
  return (
    <>
      <PageHead
        title="Billing of all tenants"
        sub="Totals only: a tenant's own cost is read inside of it, by break-glass."
      />
      <Tabs
        label="Parts of billing"
        tabs={PLATFORM_BILLING_TABS}
        current={tab}
        go={(to) => set({ tab: to === "overview" ? undefined : to })}
      />
      {tab === "overview" && <Overview search={search} set={set} />}
      {tab === "statements" && <StatementList search={search} set={set} />}
      {tab === "prove" && <Prove tenantId={null} isWide />}
    </>
  );
}

function Overview({ search, set }: TabProps) {
  const by = search.by ?? "tenant";
  const found = useQuery(billingOverview(by, periodOf(search.month), search.cursor));
  const whole = new Map<string, number>();
  for (const each of found.data?.items ?? [])
    if (each.currency) whole.set(each.currency, (whole.get(each.currency) ?? 0) + each.charged_micro);
  return (
    <div className="space-y-4">
      <div className="flex flex-wrap items-center gap-2">
        <select
          aria-label="Month"
          className="field w-auto"
          value={search.month ?? ""}
          onChange={(event) => set({ month: event.target.value || undefined })}
        >
          {recentMonths(12).map((month, back) => (
            <option key={month} value={back === 0 ? "" : month}>
              {monthText(month)}
              {back === 0 && " (so far)"}
            </option>
          ))}
        </select>
        <select
          aria-label="Sum by"
          className="field w-auto"
          value={by}
          onChange={(event) => set({ by: OVERVIEW_BY.find((each) => each === event.target.value) })}
        >
          {OVERVIEW_BY.map((each) => (
            <option key={each} value={each}>
              by {each}
            </option>
          ))}
        </select>
        <p className="text-muted">
          {!search.cursor && found.data && !found.data.next_cursor && whole.size > 0 && (
            <>booked: {[...whole].map(([currency, micro]) => microText(micro, currency)).join(" + ")}</>
          )}
        </p>
      </div>
      <DataTable
        label={`Booked cost by ${by}`}
        columns={lineColumns(by, whole)}
        query={found}
        rowKey={(each) => `${each.key} ${each.currency}`}
        empty={
          <Empty title="Nothing is booked in this month" command="mooring cost --platform">
            Hours are booked two minutes after their end.
          </Empty>
        }
        pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
      />
      <CommandLine command={`mooring cost --platform --by ${by}`} />
    </div>
  );
}

const COLUMNS: Column<Statement>[] = [
  { head: "Tenant", narrow: "line", cell: (each) => <span className="font-mono text-xs">{each.tenant_id}</span> },
  { head: "Month", cell: (each) => monthText(each.month.slice(0, 7)) },
  { head: "State", cell: (each) => <StatementBadge statement={each} /> },
  { head: "Amount", isNumber: true, cell: (each) => microText(each.amount_micro, each.currency) },
  { head: "Lines", isNumber: true, narrow: "hidden", cell: (each) => each.line_count?.toLocaleString("en") ?? "–" },
];

function StatementList({ search, set }: TabProps) {
  const found = useQuery(platformStatements(search.cursor));
  return (
    <DataTable
      label="Statements of all tenants"
      columns={COLUMNS}
      query={found}
      rowKey={(each) => each.id}
      empty={
        <Empty title="There is no statement yet" command="mooring statements list --platform">
          The first charge of a month opens one.
        </Empty>
      }
      pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
    />
  );
}
