/** The proof that nothing is left: one closing record for each member, with the receipt of the node. */
import { useQuery } from "@tanstack/react-query";
import ShieldAlert from "lucide-react/icons/shield-alert";
import ShieldCheck from "lucide-react/icons/shield-check";
import { useState } from "react";
import type { Instance, Schemas } from "../../api/client";
import { receipt } from "../../api/queries/fleet";
import { closingRecords } from "../../api/queries/runtime";
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
            <ReceiptItem key={each.id} record={each} projectId={instance.project_id} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function ReceiptItem({ record, projectId }: { record: Schemas["ClosingRecordView"]; projectId: string }) {
  const { title, good } = KIND[record.kind];
  const Icon = good ? ShieldCheck : ShieldAlert;
  const id = record.receipt?.receipt_id;
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
        {typeof id === "string" && <Signed id={id} projectId={projectId} />}
      </div>
    </li>
  );
}

/** The node's signed statement; it is fetched when somebody opens it. */
function Signed({ id, projectId }: { id: string; projectId: string }) {
  const [open, setOpen] = useState(false);
  const found = useQuery({ ...receipt(projectId, id), enabled: open });
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary className="text-xs text-muted">
        Receipt <span className="font-mono">{id}</span>
      </summary>
      <div className="mt-2 space-y-2">
        {found.error ? (
          <ProblemBox error={found.error} />
        ) : !found.data ? (
          <Skeleton rows={2} />
        ) : (
          <>
            <p className="text-xs">
              Node <span className="font-mono">{found.data.node_id}</span> looked <Ago at={found.data.looked_at} /> and{" "}
              {found.data.clean ? "found nothing left" : "found something left"}.
            </p>
            <pre className="max-h-80 overflow-auto rounded-md bg-sunken p-3 font-mono text-xs">
              {JSON.stringify(found.data.document, null, 2)}
            </pre>
          </>
        )}
        <CommandLine command={`mooring receipts export ${id} -o json | mooring receipts verify -`} />
      </div>
    </details>
  );
}
