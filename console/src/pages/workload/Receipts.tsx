/** The proof that nothing is left: one closing record for each member, with the receipt of the node. */
import { useQuery } from "@tanstack/react-query";
import ShieldAlert from "lucide-react/icons/shield-alert";
import ShieldCheck from "lucide-react/icons/shield-check";
import type { Instance, Schemas } from "../../api/client";
import { closingRecords } from "../../api/queries";
import { Ago } from "../../parts/time";
import { CommandLine, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

const KIND: Record<Schemas["ClosingKind"], { title: string; good: boolean }> = {
  receipt: { title: "Torn down, and the node found nothing left", good: true },
  nothing_started: { title: "Nothing was ever started", good: true },
  write_off: { title: "Written off: nobody checked what is left", good: false },
};

export function Receipts({ instance }: { instance: Instance }) {
  const listed = useQuery(closingRecords(instance));
  return (
    <Panel title="Receipts">
      {listed.error ? (
        <ProblemBox error={listed.error} />
      ) : !listed.data ? (
        <Skeleton />
      ) : listed.data.items.length === 0 ? (
        <Empty title="There is no receipt yet">
          Each member leaves one when it is removed or when the workload is stopped: the node's signed statement that
          nothing is left.
        </Empty>
      ) : (
        <ul className="divide-y divide-line">
          {listed.data.items.map((each) => (
            <ReceiptItem key={each.id} record={each} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function ReceiptItem({ record }: { record: Schemas["ClosingRecordView"] }) {
  const { title, good } = KIND[record.kind];
  const Icon = good ? ShieldCheck : ShieldAlert;
  const id = typeof record.receipt?.id === "string" ? record.receipt.id : null;
  return (
    <li className="flex gap-3 px-4 py-3">
      <Icon size={20} aria-hidden className={`mt-0.5 shrink-0 ${good ? "text-good" : "text-warn"}`} />
      <div className="min-w-0 flex-1 space-y-2">
        <p>
          <span className="font-semibold">{record.member_name}</span>: {title}
          <span className="block text-xs text-muted">
            <Ago at={record.created_at} />
            {record.node_id && (
              <>
                , node <span className="font-mono">{record.node_id}</span>
              </>
            )}
          </span>
        </p>
        {(record.reason ?? record.may_be_left) && (
          <p className="rounded-md bg-warn-soft p-2 text-xs text-warn">
            {record.reason} {record.may_be_left}
          </p>
        )}
        {record.receipt && (
          <details>
            <summary className="text-xs text-muted">Receipt</summary>
            <pre className="mt-2 overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
              {JSON.stringify(record.receipt, null, 2)}
            </pre>
          </details>
        )}
        {id && <CommandLine command={`mooring receipts verify ${id}`} />}
      </div>
    </li>
  );
}
