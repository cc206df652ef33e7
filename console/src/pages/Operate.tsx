/** For staff of the platform: what needs an operator, the capacity, the failures by app. */
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { appOverviews, attention, capacity, overview } from "../api/queries/overview";
import { AttentionList } from "../parts/AttentionList";
import { type Column, DataTable } from "../parts/DataTable";
import { useTitle } from "../parts/title";
import { Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";

type App = Schemas["AppOverviewView"];
type Capacity = Schemas["CapacityOverviewView"];

export function Operate() {
  useTitle("Overview");
  const needed = useQuery(attention({ tenant: null, project: undefined }));
  const counts = useQuery(overview);
  const apps = useQuery(appOverviews);
  const slots = useQuery(capacity);
  const failed = [needed, counts, apps, slots].filter((each) => each.error && each.data).length;
  return (
    <>
      <PageHead
        title="Overview"
        sub="What needs an operator, over all tenants; nothing here names a tenant's things."
      />
      {failed > 0 && (
        <p role="status" className="mb-4 rounded-md bg-warn-soft px-4 py-2 text-warn">
          Some of this may be out of date: the server does not answer. The page tries again.
        </p>
      )}
      <div className="space-y-5">
        <Panel title="Needs an operator">
          <AttentionList query={needed} clear="All clear: nothing needs an operator." />
        </Panel>
        <Panel title="The platform now">
          <Counts query={counts} />
        </Panel>
        <div className="grid gap-5 xl:grid-cols-2">
          <DataTable
            title="Capacity"
            label="Capacity by region and GPU model"
            columns={CAPACITY}
            query={slots}
            rowKey={(each) => `${each.region} ${each.gpu_model}`}
            empty={
              <Empty title="No machine has joined yet" command="mooring nodes enrolment-tokens create --region REGION">
                <p>A machine joins with a one-time token.</p>
              </Empty>
            }
          />
          <DataTable
            title="Apps, and failures of the last day"
            label="Apps, and failures of the last day"
            columns={APPS}
            query={apps}
            rowKey={(each) => each.app ?? ""}
            empty={<Empty title="No app runs" command="mooring overview apps list" />}
          />
        </div>
      </div>
    </>
  );
}

interface CountsProps {
  query: { data?: Schemas["OverviewView"]; error: unknown; refetch: () => unknown };
}

function Counts({ query }: CountsProps) {
  const { data } = query;
  if (query.error && !data) return <ProblemBox error={query.error} retry={() => void query.refetch()} />;
  if (!data) return <Skeleton rows={2} />;
  const figures: [string, number, string][] = [
    ["Tenants", data.tenants, `${data.projects} ${data.projects === 1 ? "project" : "projects"}`],
    ["Nodes", sum(data.nodes), troubles(data)],
    ["GPUs", sum(data.slots), words(data.slots)],
    ["Workloads", sum(data.instances), words(data.instances)],
    ["Allocations", sum(data.allocations), words(data.allocations)],
    ["Open operations", sum(data.operations), words(data.operations)],
  ];
  return (
    <dl className="grid grid-cols-2 gap-x-4 gap-y-5 p-4 sm:grid-cols-3 xl:grid-cols-6">
      {figures.map(([label, count, detail]) => (
        <div key={label} className="min-w-0">
          <dt className="text-xs text-muted">{label}</dt>
          <dd className="text-xl font-semibold tabular-nums">{count}</dd>
          <dd className="text-xs break-words text-muted">{detail || "none"}</dd>
        </div>
      ))}
    </dl>
  );
}

function troubles({ nodes, nodes_unreachable, nodes_cordoned }: Schemas["OverviewView"]): string {
  const notes = [
    nodes_unreachable && `${nodes_unreachable} unreachable`,
    nodes_cordoned && `${nodes_cordoned} cordoned`,
  ];
  return [words(nodes), ...notes].filter(Boolean).join(", ");
}

const sum = (counts: Record<string, number>): number => Object.values(counts).reduce((all, each) => all + each, 0);
const words = (counts: Record<string, number>): string =>
  Object.entries(counts)
    .map(([word, count]) => `${count} ${word.replaceAll("_", " ")}`)
    .join(", ");

const CAPACITY: Column<Capacity>[] = [
  { head: "Region", cell: (row) => <span className="font-medium">{row.region}</span>, narrow: "line" },
  { head: "GPU", cell: (row) => row.gpu_model },
  { head: "Nodes", cell: (row) => row.nodes, isNumber: true },
  { head: "Free", cell: (row) => `${row.free} of ${row.slots}`, isNumber: true },
  {
    head: "Used",
    cell: (row) => (
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" className="mt-1.5 h-2 w-24" role="img" aria-label={used(row)}>
        <title>{used(row)}</title>
        <rect width={100} height={8} className="fill-line" />
        <rect width={(row.claimed / row.slots) * 100} height={8} className="fill-accent" />
        <rect
          x={(row.claimed / row.slots) * 100}
          width={(row.blocked / row.slots) * 100}
          height={8}
          className="fill-bad"
        />
      </svg>
    ),
  },
];

const used = (row: Capacity): string => `${row.claimed} claimed, ${row.blocked} blocked`;

const APPS: Column<App>[] = [
  { head: "App", cell: (row) => <span className="font-medium">{row.app ?? "apps of tenants"}</span>, narrow: "line" },
  { head: "Workloads", cell: (row) => words(row.instances) || "none" },
  { head: "Health", cell: (row) => words(row.health) || "none", narrow: "hidden" },
  {
    head: "Failures",
    cell: (row) => (
      <span className={sum(row.failures) > 0 ? "text-bad" : "text-muted"}>{words(row.failures) || "none"}</span>
    ),
  },
];
