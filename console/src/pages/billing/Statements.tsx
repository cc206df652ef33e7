/** The statements of a tenant: one for each month and currency. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { Scope } from "../../api/queries/identity";
import { type Statement, statements } from "../../api/queries/money";
import { microText, monthText } from "../../parts/amount";
import { type Column, DataTable } from "../../parts/DataTable";
import { Empty, Panel } from "../../parts/ui";
import type { BillingSearch } from "../../routes/money";
import { CoveredAmount } from "./CostPanels";
import { StatementBadge } from "./StatementBadge";

interface StatementsProps {
  scope: Scope;
  search: BillingSearch;
  set: (change: BillingSearch) => void;
}

const COLUMNS: Column<Statement>[] = [
  {
    head: "Month",
    narrow: "line",
    cell: (each) => (
      <Link to="/billing/statements/$id" params={{ id: each.id }} className="font-medium hover:underline">
        {monthText(each.month.slice(0, 7))}
      </Link>
    ),
  },
  { head: "State", cell: (each) => <StatementBadge statement={each} /> },
  { head: "Amount", isNumber: true, cell: (each) => microText(each.amount_micro, each.currency) },
  {
    head: "Covered",
    isNumber: true,
    cell: (each) => <CoveredAmount micro={each.shadow_micro ?? 0} currency={each.currency} />,
  },
  { head: "Lines", isNumber: true, narrow: "hidden", cell: (each) => each.line_count?.toLocaleString("en") ?? "–" },
];

export function Statements({ scope, search, set }: StatementsProps) {
  const found = useQuery(statements(scope.tenant, search.cursor));
  if (!scope.tenant)
    return (
      <Panel>
        <Empty title="Statements are of the whole tenant" command="mooring statements list">
          Reading them needs <code className="font-mono text-xs">billing.read</code> in the tenant. An admin of the
          tenant can give you a role that has it.
        </Empty>
      </Panel>
    );
  return (
    <DataTable
      label="Statements"
      columns={COLUMNS}
      query={found}
      rowKey={(each) => each.id}
      empty={
        <Empty title="There is no statement yet" command="mooring statements list">
          A month has one from its first booked charge on: a preview until it is closed, and then it never changes.
        </Empty>
      }
      pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
    />
  );
}
