/** The machines as a map (region, machine, GPU slots), as a table, and the tokens with which machines join. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import CircleOff from "lucide-react/icons/circle-off";
import Unplug from "lucide-react/icons/unplug";
import { type Node, nodes } from "../api/queries/nodes";
import { type Column, DataTable } from "../parts/DataTable";
import { EnrolmentTokens } from "../parts/EnrolmentTokens";
import { Choice, FilterBar, TextFilter } from "../parts/Filters";
import { countUses, SlotBlocks, SlotLegend, SlotTotals, type SlotUse } from "../parts/SlotMap";
import { Status } from "../parts/Status";
import { Tabs } from "../parts/Tabs";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { NODE_STATES, NODE_VIEWS, type NodesSearch } from "../routes/fleet";

/** Above this a region is drawn as groups of machines with counts; the page says so. */
const DRAWN_MAX = 50;

export function Nodes() {
  useTitle("Nodes");
  const filter = useSearch({ from: "/shell/nodes" });
  const navigate = useNavigate({ from: "/nodes" });
  const { view = "map", ...wanted } = filter;
  const page = useQuery({ ...nodes(wanted), enabled: view !== "tokens" });
  const set = (change: NodesSearch, replace = false) =>
    void navigate({ replace, search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const clear = () => set({ status: undefined, region: undefined, reachable: undefined });
  const isFiltered = Boolean(filter.status || filter.region || filter.reachable !== undefined);
  const empty = isFiltered ? (
    <Empty title="No machine is like this" command="mooring nodes list" />
  ) : (
    <Empty title="No machine has joined yet" command="mooring nodes enrolment-tokens create">
      Make an enrolment token, and start the agent on the machine with it.
    </Empty>
  );
  return (
    <>
      <PageHead title="Nodes" sub="The machines of the platform, and what their GPUs are used for." />
      <Tabs
        label="Views"
        tabs={NODE_VIEWS}
        current={view}
        go={(next) => set({ view: next === "map" ? undefined : next })}
      />
      {view === "tokens" ? (
        <EnrolmentTokens cursor={filter.cursor} go={(cursor) => set({ cursor })} />
      ) : (
        <>
          <FilterBar isFiltered={isFiltered} clear={clear}>
            <Choice label="State" words={NODE_STATES} value={filter.status} onChange={(status) => set({ status })} />
            <Choice
              label="Connection"
              words={["reachable", "unreachable"] as const}
              value={filter.reachable === undefined ? undefined : filter.reachable ? "reachable" : "unreachable"}
              onChange={(word) => set({ reachable: word && word === "reachable" })}
            />
            <TextFilter label="Region" value={filter.region} onChange={(region) => set({ region }, true)} />
          </FilterBar>
          {view === "table" ? (
            <DataTable
              label="Nodes"
              columns={COLUMNS}
              query={page}
              rowKey={(each) => each.id}
              pages={{ cursor: filter.cursor, go: (cursor) => set({ cursor }) }}
              empty={empty}
            />
          ) : page.error ? (
            <ProblemBox error={page.error} retry={() => page.refetch()} />
          ) : !page.data ? (
            <Skeleton rows={8} />
          ) : page.data.items.length === 0 ? (
            <Panel>{empty}</Panel>
          ) : (
            <FleetMap
              nodes={page.data.items}
              next={page.data.next_cursor ?? undefined}
              isFirst={filter.cursor === undefined}
              go={(cursor) => set({ cursor })}
              open={(region, status) => set({ region, status })}
            />
          )}
        </>
      )}
    </>
  );
}

interface FleetMapProps {
  nodes: Node[];
  next: string | undefined;
  isFirst: boolean;
  go: (cursor: string | undefined) => void;
  open: (region: string, status: Node["status"]) => void;
}

function FleetMap({ nodes, next, isFirst, go, open }: FleetMapProps) {
  const regions = [...new Set(nodes.map((each) => each.region))].sort();
  return (
    <div className="space-y-5">
      <div className="flex flex-wrap items-center justify-between gap-3">
        <SlotLegend />
        <ul aria-label="Marks of machines" className="flex flex-wrap gap-x-4 text-xs text-muted">
          <li className="flex items-center gap-1.5">
            <CircleOff size={14} className="text-warn" aria-hidden /> cordoned
          </li>
          <li className="flex items-center gap-1.5">
            <Unplug size={14} className="text-bad" aria-hidden /> unreachable
          </li>
        </ul>
      </div>
      {(next || !isFirst) && (
        <p role="status" className="rounded-md bg-busy-soft px-4 py-2 text-busy">
          This shows {nodes.length} machines; there are more. Choose a region, or go on to the next.
        </p>
      )}
      {regions.map((region) => (
        <Region key={region} name={region} nodes={nodes.filter((each) => each.region === region)} open={open} />
      ))}
      {(next || !isFirst) && (
        <nav aria-label="Pages of the map" className="flex justify-end gap-2">
          {!isFirst && <Button onClick={() => go(undefined)}>First page</Button>}
          {next && <Button onClick={() => go(next)}>Next page</Button>}
        </nav>
      )}
    </div>
  );
}

function usesOf(nodes: Node[]): SlotUse[] {
  return nodes.flatMap((each) => each.slot_uses ?? []);
}

function Region({ name, nodes, open }: { name: string; nodes: Node[]; open: FleetMapProps["open"] }) {
  const isClustered = nodes.length > DRAWN_MAX;
  return (
    <Panel
      title={name}
      aside={
        <span className="flex flex-wrap items-center gap-x-4 gap-y-1 text-xs text-muted">
          {nodes.length} {nodes.length === 1 ? "machine" : "machines"}
          <SlotTotals counts={countUses(usesOf(nodes))} />
        </span>
      }
    >
      {isClustered ? (
        <>
          <p className="px-4 pt-3 text-xs text-muted">
            More than {DRAWN_MAX} machines are drawn as groups by their state. Open a group to see its machines.
          </p>
          <ul className="grid gap-3 p-4 sm:grid-cols-2 lg:grid-cols-3">
            {[...new Set(nodes.map((each) => each.status))].map((status) => {
              const group = nodes.filter((each) => each.status === status);
              return (
                <li key={status} className="rounded-md border border-line p-3">
                  <button
                    type="button"
                    className="mb-2 flex w-full items-center gap-2"
                    onClick={() => open(name, status)}
                  >
                    <Status kind="node" value={status} />
                    <span className="link">{group.length} machines</span>
                  </button>
                  <SlotTotals counts={countUses(usesOf(group))} />
                </li>
              );
            })}
          </ul>
        </>
      ) : (
        <ul className="grid gap-3 p-4 sm:grid-cols-2 lg:grid-cols-3 xl:grid-cols-4">
          {nodes.map((each) => (
            <Machine key={each.id} node={each} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function isCut(node: Node): boolean {
  return !node.reachable && node.status !== "retired" && node.status !== "pending";
}

function Machine({ node }: { node: Node }) {
  const look = isCut(node) ? "border-bad" : node.cordoned_at ? "border-warn border-dashed" : "border-line";
  return (
    <li className={`min-w-0 space-y-2 rounded-md border p-3 ${look}`}>
      <div className="flex items-center gap-2">
        <Link to="/nodes/$id" params={{ id: node.id }} className="min-w-0 flex-1 truncate font-medium hover:underline">
          {node.name}
        </Link>
        <Marks node={node} />
        <Status kind="node" value={node.status} />
      </div>
      <SlotBlocks uses={node.slot_uses ?? []} />
      {node.why[0] && node.status !== "retired" && (
        <p className="truncate text-xs text-warn" title={node.why.map((each) => each.detail).join("; ")}>
          {node.why[0].detail}
        </p>
      )}
    </li>
  );
}

function Marks({ node }: { node: Node }) {
  return (
    <>
      {node.cordoned_at && <CircleOff size={15} className="shrink-0 text-warn" role="img" aria-label="cordoned" />}
      {isCut(node) && <Unplug size={15} className="shrink-0 text-bad" role="img" aria-label="unreachable" />}
    </>
  );
}

const COLUMNS: Column<Node>[] = [
  {
    head: "Name",
    narrow: "line",
    cell: (each) => (
      <span className="flex items-center gap-2">
        <Link to="/nodes/$id" params={{ id: each.id }} className="font-medium hover:underline">
          {each.name}
        </Link>
        <Marks node={each} />
      </span>
    ),
  },
  { head: "State", cell: (each) => <Status kind="node" value={each.status} /> },
  { head: "Region", cell: (each) => <span className="text-muted">{each.region}</span> },
  { head: "Slots", cell: (each) => <SlotBlocks uses={each.slot_uses ?? []} /> },
  { head: "Free", isNumber: true, cell: (each) => `${each.slots_free}/${each.slots_total}` },
  { head: "Allocations", isNumber: true, narrow: "hidden", cell: (each) => each.allocations },
  {
    head: "Last seen",
    cell: (each) => <span className="text-muted">{each.last_seen_at ? <Ago at={each.last_seen_at} /> : "never"}</span>,
  },
  {
    head: "Takes no work because",
    narrow: "line",
    cell: (each) => <span className="text-xs text-warn">{each.why.map((why) => why.detail).join("; ")}</span>,
  },
];
