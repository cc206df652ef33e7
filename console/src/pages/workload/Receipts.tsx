/** The proof that nothing is left: one closing record for each member, with the receipt of the node. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import ShieldAlert from "lucide-react/icons/shield-alert";
import ShieldCheck from "lucide-react/icons/shield-check";
import ShieldQuestion from "lucide-react/icons/shield-question-mark";
import ShieldX from "lucide-react/icons/shield-x";
import { useState } from "react";
import type { Instance, Schemas } from "../../api/client";
import { receiptBundle } from "../../api/queries/fleet";
import { closingRecords } from "../../api/queries/runtime";
import { type VerifiedBundle, verifyBundle } from "../../api/receiptBundle";
import { announce } from "../../parts/announcer";
import { download } from "../../parts/download";
import { Ago } from "../../parts/time";
import { Button, CommandLine, CopyButton, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

type ClosingRecord = Schemas["ClosingRecordView"];
/** What the check in this browser found; `error` is a refusal of the server, which says nothing about the receipt. */
type Outcome = { verified: VerifiedBundle } | { refused: string } | { error: unknown } | "checking";

const TITLE: Record<Schemas["ClosingKind"], string> = {
  receipt: "Torn down, and the node found nothing left",
  nothing_started: "Nothing was ever started",
  write_off: "Written off: nobody checked what is left",
};

function receiptId(record: ClosingRecord): string | undefined {
  const id = record.receipt?.receipt_id;
  return record.kind === "receipt" && typeof id === "string" ? id : undefined;
}

export function Receipts({ instance }: { instance: Instance }) {
  const listed = useQuery(closingRecords(instance));
  const { outcomes, check } = useChecks(instance.project_id);
  const ids = (listed.data?.items ?? []).flatMap((each) => receiptId(each) ?? []);
  const checked = ids.map((id) => outcomes[id]).filter((each) => typeof each === "object");
  const good = checked.filter((each) => "verified" in each).length;
  return (
    <Panel
      title="Receipts"
      aside={
        ids.length > 0 && (
          <div className="flex flex-wrap items-center gap-3">
            {checked.length > 0 && (
              <span role="status" className={`text-xs ${good === checked.length ? "text-good" : "text-bad"}`}>
                {good} of {ids.length} verified
              </span>
            )}
            <Button onClick={() => void check(ids)}>
              <ShieldCheck size={14} aria-hidden /> Verify in this browser
            </Button>
          </div>
        )
      }
    >
      {listed.error ? (
        <ProblemBox error={listed.error} retry={() => listed.refetch()} />
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
            <ReceiptItem
              key={each.id}
              record={each}
              projectId={instance.project_id}
              outcome={outcomes[receiptId(each) ?? ""]}
            />
          ))}
        </ul>
      )}
    </Panel>
  );
}

/** Checks receipts one after another, with the bundle that the server exports and nothing else. */
function useChecks(projectId: string) {
  const queries = useQueryClient();
  const [outcomes, setOutcomes] = useState<Record<string, Outcome>>({});
  const set = (id: string, outcome: Outcome) => setOutcomes((before) => ({ ...before, [id]: outcome }));
  const check = async (ids: string[]) => {
    for (const id of ids) set(id, "checking");
    let verified = 0;
    for (const id of ids) {
      try {
        const bundle = await queries.fetchQuery({ ...receiptBundle(projectId, id), staleTime: 0 });
        try {
          set(id, { verified: await verifyBundle(bundle) });
          verified += 1;
        } catch (refusal) {
          set(id, { refused: (refusal as Error).message });
        }
      } catch (error) {
        set(id, { error });
      }
    }
    announce(`${verified} of ${ids.length} receipts are verified`);
  };
  return { outcomes, check };
}

interface ItemProps {
  record: ClosingRecord;
  projectId: string;
  outcome: Outcome | undefined;
}

function ReceiptItem({ record, projectId, outcome }: ItemProps) {
  const id = receiptId(record);
  const { Icon, tone } = look(record, outcome);
  return (
    <li className="flex gap-3 px-4 py-3">
      <Icon size={20} aria-hidden className={`mt-0.5 shrink-0 ${tone}`} />
      <div className="min-w-0 flex-1 space-y-2">
        <p>
          <span className="font-semibold">{record.member_name}</span>: {TITLE[record.kind]}
          <span className="block text-xs text-muted">
            <Ago at={record.created_at} />
            {record.node_id && (
              <>
                , node <span className="font-mono">{record.node_id}</span>
              </>
            )}
          </span>
        </p>
        {record.kind === "write_off" && (
          <p className="rounded-md bg-warn-soft p-2 text-xs break-words text-warn">
            There is no receipt. {record.reason && `The reason given: ${record.reason}. `}
            {record.may_be_left && `What may be left: ${record.may_be_left}`}
          </p>
        )}
        {id && outcome && <OutcomeBox outcome={outcome} />}
        {id && <Signed id={id} projectId={projectId} />}
      </div>
    </li>
  );
}

/** A shield with a tick is kept for what was checked here; a record alone is the platform's word. */
function look(record: ClosingRecord, outcome: Outcome | undefined) {
  if (record.kind === "write_off") return { Icon: ShieldAlert, tone: "text-warn" };
  if (typeof outcome === "object" && "verified" in outcome) return { Icon: ShieldCheck, tone: "text-good" };
  if (typeof outcome === "object" && "refused" in outcome) return { Icon: ShieldX, tone: "text-bad" };
  return { Icon: ShieldQuestion, tone: "text-muted" };
}

function OutcomeBox({ outcome }: { outcome: Outcome }) {
  if (outcome === "checking") return <p className="text-xs text-muted">Checking…</p>;
  if ("error" in outcome) return <ProblemBox error={outcome.error} />;
  if ("refused" in outcome)
    return (
      <p className="rounded-md bg-bad-soft p-2 text-xs break-words">
        <span className="font-semibold text-bad">Not verified</span>: {outcome.refused}
      </p>
    );
  const { proves, doesNotProve } = outcome.verified;
  return (
    <div className="space-y-2 rounded-md bg-good-soft p-3 text-xs">
      <p className="font-semibold text-good">Verified in this browser</p>
      <ul className="list-disc space-y-1 pl-4 break-words">
        {proves.map((each) => (
          <li key={each}>{each}</li>
        ))}
      </ul>
      <p className="font-semibold">What it leaves open</p>
      <ul className="list-disc space-y-1 pl-4 break-words">
        {doesNotProve.map((each) => (
          <li key={each}>{each}</li>
        ))}
      </ul>
    </div>
  );
}

/** The node's signed statement with its proof; it is fetched when somebody opens it. */
function Signed({ id, projectId }: { id: string; projectId: string }) {
  const [open, setOpen] = useState(false);
  const found = useQuery({ ...receiptBundle(projectId, id), enabled: open });
  const text = found.data && JSON.stringify(found.data, null, 2);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary className="text-xs text-muted">
        Receipt <span className="font-mono">{id}</span>
      </summary>
      <div className="mt-2 space-y-2">
        {found.error ? (
          <ProblemBox error={found.error} retry={() => found.refetch()} />
        ) : !text ? (
          <Skeleton rows={2} />
        ) : (
          <>
            <div className="flex items-center gap-1">
              <Button onClick={() => download(`${id}.json`, text)}>Download</Button>
              <CopyButton text={text} label="Copy the exported receipt" />
            </div>
            {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
            <pre tabIndex={0} className="max-h-80 overflow-auto rounded-md bg-sunken p-3 font-mono text-xs">
              {text}
            </pre>
          </>
        )}
        <CommandLine command={`mooring receipts export ${id} -o json | mooring receipts verify -`} />
      </div>
    </details>
  );
}
