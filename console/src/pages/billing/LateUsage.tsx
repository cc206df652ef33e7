/** Usage that came after its window: a person accepts or rejects it, nothing is dropped silently. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { lateUsage } from "../../api/queries/money";
import { unitText } from "../../parts/amount";
import { type Column, DataTable } from "../../parts/DataTable";
import { ActionDialog } from "../../parts/Dialog";
import { Field } from "../../parts/Field";
import { Choice, FilterBar } from "../../parts/Filters";
import { useMissing } from "../../parts/moneyScope";
import { Ago } from "../../parts/time";
import { Button, Empty } from "../../parts/ui";
import { type BillingSearch, LATE_STATES } from "../../routes/money";

interface LateUsageProps {
  projectId: string | undefined;
  search: BillingSearch;
  set: (change: BillingSearch) => void;
}

type Late = Schemas["LateUsageView"];
type Choosing = { late: Late; verb: "accept" | "reject" };

export function LateUsage({ projectId, search, set }: LateUsageProps) {
  const found = useQuery(lateUsage(projectId, search.late, search.cursor));
  const missing = useMissing("usage.resolve", projectId);
  const [choosing, setChoosing] = useState<Choosing | null>(null);
  const columns: Column<Late>[] = [
    { head: "Event", narrow: "line", cell: (each) => <EventName late={each} /> },
    { head: "Quantity", isNumber: true, cell: (each) => `${each.quantity} ${unitText(each.unit)}` },
    { head: "Used", cell: (each) => <Ago at={each.ended_at} /> },
    { head: "Received", narrow: "hidden", cell: (each) => <Ago at={each.created_at} /> },
    {
      head: "State",
      cell: (each) =>
        each.status === "open" ? (
          <span className="flex gap-2">
            <Button onClick={() => setChoosing({ late: each, verb: "accept" })} disabledReason={missing}>
              Accept
            </Button>
            <Button onClick={() => setChoosing({ late: each, verb: "reject" })} disabledReason={missing}>
              Reject
            </Button>
          </span>
        ) : (
          <span title={each.reason ?? ""}>{each.status}</span>
        ),
    },
  ];
  return (
    <>
      <FilterBar isFiltered={search.late !== undefined} clear={() => set({ late: undefined })}>
        <Choice label="State" words={LATE_STATES} value={search.late} onChange={(late) => set({ late })} />
      </FilterBar>
      <DataTable
        label="Late usage of the project"
        columns={columns}
        query={found}
        rowKey={(each) => each.id}
        empty={
          <Empty title="No usage came too late" command="mooring late-usage list">
            Events that end before the window wait here until somebody accepts or rejects them.
          </Empty>
        }
        pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
      />
      {choosing && projectId && (
        <ResolveDialog choosing={choosing} projectId={projectId} close={() => setChoosing(null)} />
      )}
    </>
  );
}

function EventName({ late }: { late: Late }) {
  return (
    <>
      <span className="font-medium break-all">{late.event_id}</span>
      <span className="block text-xs break-all text-muted">
        {late.event_source} · {late.instance_id}
      </span>
    </>
  );
}

function ResolveDialog({ choosing, projectId, close }: { choosing: Choosing; projectId: string; close: () => void }) {
  const { late, verb } = choosing;
  const queries = useQueryClient();
  const [reason, setReason] = useState("");
  const params = (key: string) => ({
    path: { project_id: projectId, late_usage_id: late.id },
    header: { "Idempotency-Key": key },
  });
  return (
    <ActionDialog
      title={verb === "accept" ? "Accept this usage?" : "Reject this usage?"}
      confirm={verb === "accept" ? "Accept" : "Reject"}
      danger={verb === "reject"}
      command={`mooring late-usage ${verb} ${late.id} --project ${projectId} --reason "${reason}"`}
      close={close}
      act={async (key) => {
        await (verb === "accept"
          ? answer(
              api.POST("/api/v1/projects/{project_id}/late-usage/{late_usage_id}/accept", {
                params: params(key),
                body: { reason },
              }),
            )
          : answer(
              api.POST("/api/v1/projects/{project_id}/late-usage/{late_usage_id}/reject", {
                params: params(key),
                body: { reason },
              }),
            ));
        await queries.invalidateQueries({ queryKey: ["late-usage"] });
      }}
    >
      <p>
        {late.quantity} {unitText(late.unit)}, used until {late.ended_at.slice(0, 16).replace("T", " ")} UTC.{" "}
        {verb === "accept"
          ? "It becomes a usage record and is charged in this hour."
          : "It is kept, and never charged. It cannot be accepted afterwards."}
      </p>
      <Field
        label="Reason"
        required
        maxLength={1000}
        value={reason}
        onChange={setReason}
        help="It is stored in the audit trail."
      />
    </ActionDialog>
  );
}
