/** What was booked afterwards: late log, late usage, and credits by hand. Each names the charge that it corrects. */
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../../api/client";
import type { Scope } from "../../api/queries/identity";
import { corrections } from "../../api/queries/money";
import { microText } from "../../parts/amount";
import { type Column, DataTable } from "../../parts/DataTable";
import { useProject } from "../../parts/session";
import { Ago } from "../../parts/time";
import { Empty } from "../../parts/ui";
import type { BillingSearch } from "../../routes/money";

interface CorrectionsProps {
  scope: Scope;
  search: BillingSearch;
  set: (change: BillingSearch) => void;
}

type Transaction = Schemas["LedgerTransactionView"];

export function Corrections({ scope, search, set }: CorrectionsProps) {
  const found = useQuery(corrections(scope, search.cursor));
  const { projects } = useProject(scope.project);
  const slugs = new Map(projects.map((each) => [each.id, each.slug]));
  const columns: Column<Transaction>[] = [
    { head: "Hour (UTC)", narrow: "line", cell: (each) => each.hour.slice(0, 16).replace("T", " ") },
    { head: "Amount", isNumber: true, cell: (each) => owed(each) },
    { head: "Project", cell: (each) => slugs.get(each.project_id) ?? each.project_id },
    {
      head: "Corrects",
      narrow: "hidden",
      cell: (each) => <code className="font-mono text-xs">{each.corrects_id}</code>,
    },
    { head: "Booked", cell: (each) => <Ago at={each.created_at} /> },
  ];
  return (
    <DataTable
      label="Corrections"
      columns={columns}
      query={found}
      rowKey={(each) => each.id}
      empty={
        <Empty title="Nothing was corrected" command="mooring ledger --kind correction">
          A booking is never changed. What turns out to be different later is a booking of its own, and stands here.
        </Empty>
      }
      pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
    />
  );
}

/** What the project owes more, or less, by this transaction. */
function owed(transaction: Transaction): string {
  const own = transaction.entries.filter((each) => each.account === "receivable");
  return own.map((each) => microText(each.amount_micro, each.currency)).join(", ");
}
