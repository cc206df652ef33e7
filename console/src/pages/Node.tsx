/** One machine: its slots, what was found on it, its tasks and allocations, and what staff can do with it. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { isProblem, type Schemas } from "../api/client";
import { type NodeDetail, node as nodeQuery, nodeTasks, occupancy } from "../api/queries/nodes";
import { type Column, DataTable } from "../parts/DataTable";
import { NodeActions } from "../parts/NodeActions";
import { SLOT_LOOKS, SlotBlocks, SlotLegend } from "../parts/SlotMap";
import { Status } from "../parts/Status";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { CopyButton, Definition, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { NotFoundBody } from "./NotFound";

const GIB = 2 ** 30;

export function Node() {
  const { id } = useParams({ from: "/shell/nodes/$id" });
  const found = useQuery(nodeQuery(id));
  useTitle(found.data?.name ?? "Node");
  if (isProblem(found.error, 404)) return <NotFoundBody noun="node" />;
  if (found.error && !found.data) return <ProblemBox error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={8} />;
  return <NodePage node={found.data} />;
}

function NodePage({ node }: { node: NodeDetail }) {
  const on = useQuery(occupancy(node.id));
  const held = on.data?.items ?? [];
  return (
    <>
      <PageHead title={node.name} sub={`${node.host} host in ${node.region}`}>
        <NodeActions node={node} held={held} />
      </PageHead>
      <div className="mb-4 flex flex-wrap items-center gap-2" role="status" aria-label="State">
        <Status kind="node" value={node.status} />
        {!node.reachable && node.status !== "retired" && <Status kind="node" value="unreachable" />}
        {node.last_seen_at && (
          <span className="text-xs text-muted">
            last seen <Ago at={node.last_seen_at} />
          </span>
        )}
        <span className="flex items-center font-mono text-xs text-muted max-sm:hidden">
          {node.id}
          <CopyButton text={node.id} label="Copy the id" />
        </span>
      </div>
      {node.why.length > 0 && (
        <div className="mb-5 rounded-lg border border-warn/40 bg-warn-soft p-4 text-warn">
          <p className="font-semibold">It takes no new allocations</p>
          <ul className="mt-1 list-disc pl-5">
            {node.why.map((each) => (
              <li key={each.code} className="break-words">
                {each.detail}
              </li>
            ))}
            {node.cordon_reason && <li>cordoned because: {node.cordon_reason}</li>}
          </ul>
        </div>
      )}
      <div className="grid gap-5 lg:grid-cols-2">
        <Panel title="GPU slots" aside={<SlotBlocks uses={node.slot_uses ?? []} />} className="lg:col-span-2">
          <Slots node={node} />
          <div className="border-t border-line px-4 py-3">
            <SlotLegend />
          </div>
        </Panel>
        <Panel title="Hardware and facts">
          <Facts node={node} />
        </Panel>
        <Panel title="Findings">
          {node.findings.length === 0 ? (
            <Empty title="Nothing was found on it">What it reports is what it has.</Empty>
          ) : (
            <ul className="divide-y divide-line">
              {node.findings.map((each) => (
                <li key={`${each.code} ${each.detail}`} className="px-4 py-3">
                  <p className="font-medium text-warn">{each.code.replaceAll("_", " ")}</p>
                  <p className="break-words text-muted">{each.detail}</p>
                </li>
              ))}
            </ul>
          )}
        </Panel>
        <div className="lg:col-span-2">
          <DataTable
            label="Allocations on it"
            title="Allocations"
            columns={HELD}
            query={on}
            rowKey={(each) => each.id}
            empty={<Empty title="No allocation is on it">It is empty; draining or retiring it touches nobody.</Empty>}
          />
        </div>
        <div className="lg:col-span-2">
          <Tasks nodeId={node.id} />
        </div>
      </div>
    </>
  );
}

function Slots({ node }: { node: NodeDetail }) {
  if (node.slots.length === 0) return <Empty title="It has no GPUs" />;
  return (
    <div className="overflow-x-auto">
      <table className="w-full text-left">
        <caption className="sr-only">Slots of {node.name}</caption>
        <thead className="border-b border-line text-xs text-muted">
          <tr>
            {["Slot", "GPU", "Memory", "NUMA", "Use", "Allocation"].map((head) => (
              <th key={head} scope="col" className="px-4 py-2 font-medium">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="divide-y divide-line">
          {node.slots.map((each, place) => {
            const use = node.slot_uses?.[place];
            return (
              <tr key={each.id}>
                <td className="px-4 py-2 tabular-nums">{each.index}</td>
                <td className="px-4 py-2">
                  {each.gpu_model}
                  {each.simulated && each.gpu_model !== "simulated" && <span className="text-muted"> simulated</span>}
                </td>
                <td className="px-4 py-2 tabular-nums">{Math.round(each.memory_bytes / GIB)} GiB</td>
                <td className="px-4 py-2 tabular-nums">{each.numa}</td>
                <td className="px-4 py-2">{use && SLOT_LOOKS[use].label}</td>
                <td className="px-4 py-2 font-mono text-xs text-muted">{each.allocation_id}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function Facts({ node }: { node: NodeDetail }) {
  const inventory = node.inventory ?? {};
  const known = Object.entries(node.facts);
  const labels = Object.entries(node.labels);
  return (
    <>
      <dl className="grid grid-cols-2 gap-4 p-4">
        {typeof inventory.cpus === "number" && <Definition label="Processors">{inventory.cpus}</Definition>}
        {typeof inventory.memory_bytes === "number" && (
          <Definition label="Memory">{Math.round(inventory.memory_bytes / GIB)} GiB</Definition>
        )}
        {typeof inventory.agent_version === "string" && (
          <Definition label="Agent">{inventory.agent_version}</Definition>
        )}
        <Definition label="Host of sandboxes">{node.host}</Definition>
        <Definition label="Joined">
          <Ago at={node.created_at} />
        </Definition>
        <Definition label="Approval">{node.approval}</Definition>
        <Definition label="Labels" wide>
          {labels.length === 0 ? "none" : labels.map(([key, value]) => `${key}=${value}`).join(", ")}
        </Definition>
      </dl>
      {known.length > 0 && (
        <details className="border-t border-line px-4 py-3">
          <summary className="text-xs text-muted">{known.length} facts that manifests may compare</summary>
          <dl className="mt-2 grid grid-cols-[auto_minmax(0,1fr)] gap-x-4 gap-y-1 font-mono text-xs">
            {known.map(([key, value]) => (
              <div key={key} className="contents">
                <dt className="text-muted">{key}</dt>
                <dd className="break-words">{String(value)}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </>
  );
}

const HELD: Column<Schemas["OccupancyView"]>[] = [
  { head: "Allocation", narrow: "line", cell: (each) => <span className="font-mono text-xs">{each.id}</span> },
  { head: "State", cell: (each) => <Status kind="allocation" value={each.status} /> },
  { head: "Tenant", cell: (each) => <span className="font-mono text-xs text-muted">{each.tenant_id}</span> },
  { head: "GPUs", isNumber: true, cell: (each) => each.gpu_count },
  { head: "Blocker", narrow: "line", cell: (each) => <span className="text-warn">{each.blocker}</span> },
  {
    head: "Since",
    cell: (each) => <span className="text-muted">{each.placed_at && <Ago at={each.placed_at} />}</span>,
  },
];

function Tasks({ nodeId }: { nodeId: string }) {
  const { cursor } = useSearch({ from: "/shell/nodes/$id" });
  const navigate = useNavigate({ from: "/nodes/$id" });
  return (
    <DataTable
      label="Tasks"
      title="Tasks"
      columns={TASKS}
      query={useQuery(nodeTasks(nodeId, cursor))}
      rowKey={(each) => each.id}
      pages={{ cursor, go: (next) => void navigate({ search: { cursor: next } }) }}
      empty={<Empty title="It had no task yet" command={`mooring nodes tasks ${nodeId}`} />}
    />
  );
}

const TASKS: Column<Schemas["NodeTaskView"]>[] = [
  { head: "Task", narrow: "line", cell: (each) => <span className="font-medium">{each.type}</span> },
  { head: "State", cell: (each) => <Status kind="task" value={each.status} /> },
  { head: "Failure", cell: (each) => <span className="text-bad">{each.failure_code}</span> },
  {
    head: "Allocation",
    narrow: "hidden",
    cell: (each) => <span className="font-mono text-xs text-muted">{each.allocation_id}</span>,
  },
  {
    head: "Made",
    cell: (each) => (
      <span className="text-muted">
        <Ago at={each.created_at} />
      </span>
    ),
  },
];
