/** The members as a grid: components by nodes, with the GPU slots that each has allocated. */
import { useQuery } from "@tanstack/react-query";
import type { Instance, Member, Schemas } from "../../api/client";
import { allocations } from "../../api/queries/fleet";
import { useMeaning } from "../../api/queries/reference";

const NODES_MAX = 50;
const SLOTS_MAX = 16;

type Allocation = Schemas["AllocationView"];

interface MemberGridProps {
  instance: Instance;
  members: Member[];
  /** The member that the pointer or the focus is on, here or in the table. */
  lit: string | undefined;
  light: (id: string | undefined) => void;
}

interface Column {
  key: string;
  title: string;
  detail: string;
  isSilent: boolean;
}

export function MemberGrid({ instance, members, lit, light }: MemberGridProps) {
  const held = useQuery(allocations(instance.project_id)).data?.items ?? [];
  const byId = new Map(held.map((each) => [each.id, each]));
  const nodes = new Set(members.map((each) => each.node_id ?? ""));
  const isClustered = nodes.size > NODES_MAX;
  const place = (each: Member) => {
    const region = byId.get(each.allocation_id ?? "")?.region ?? "region unknown";
    return isClustered ? region : (each.node_id ?? "");
  };
  const columns = columnsOf(members, byId, place, isClustered);
  const components = [...new Set(members.map((each) => each.component_key))].sort();
  const light_ = { lit, light };
  return (
    <div className="space-y-2 p-4">
      {isClustered && (
        <p className="text-xs text-muted">
          {nodes.size} nodes are more than {NODES_MAX}: each column is a region, with the count of its members.
        </p>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <section className="overflow-x-auto" aria-label="Members by node" tabIndex={0}>
        <table>
          <caption className="sr-only">Components by nodes; the table below has the same with all states</caption>
          <thead>
            <tr>
              <th scope="col" className="pr-4 pb-2 text-left align-bottom text-xs font-medium text-muted">
                Component
              </th>
              {columns.map((each) => (
                <th key={each.key} scope="col" className="px-2 pb-2 text-left align-bottom font-normal">
                  <span className="block font-mono text-xs">{each.title}</span>
                  <span className={`block text-xs ${each.isSilent ? "text-warn" : "text-muted"}`}>{each.detail}</span>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {components.map((component) => (
              <tr key={component} className="border-t border-line">
                <th scope="row" className="py-2 pr-4 text-left align-top font-medium">
                  {component}
                </th>
                {columns.map((column) => {
                  const here = members.filter((each) => each.component_key === component && place(each) === column.key);
                  return (
                    <td key={column.key} className="px-2 py-2 align-top">
                      {isClustered ? (
                        <Cluster members={here} />
                      ) : (
                        <div className="flex flex-wrap gap-2">
                          {here.map((each) => (
                            <Block
                              key={each.id}
                              member={each}
                              allocation={byId.get(each.allocation_id ?? "")}
                              {...light_}
                            />
                          ))}
                        </div>
                      )}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <p className="text-xs text-muted">
        <span aria-hidden className="mr-1 inline-block size-2.5 rounded-[2px] bg-accent align-middle" /> one GPU slot
        that is allocated, whether it is busy or not.
      </p>
    </div>
  );
}

function columnsOf(
  members: Member[],
  byId: Map<string, Allocation>,
  place: (member: Member) => string,
  isClustered: boolean,
): Column[] {
  const found = new Map<string, Column>();
  for (const each of members) {
    const key = place(each);
    const own = byId.get(each.allocation_id ?? "");
    const isSilent = each.node_reachable === false;
    const count = members.filter((other) => place(other) === key).length;
    const title = isClustered ? key : key ? `…${key.slice(-8)}` : "no node yet";
    const detail = isClustered ? `${count} members` : isSilent ? "does not answer" : (own?.region ?? "");
    if (!found.has(key)) found.set(key, { key, title, detail, isSilent });
  }
  return [...found.values()].sort((one, other) => one.key.localeCompare(other.key));
}

function Cluster({ members }: { members: Member[] }) {
  if (members.length === 0) return null;
  const healthy = members.filter((each) => each.health === "healthy").length;
  return (
    <span className="tabular-nums">
      {members.length} <span className="text-xs text-muted">members, {healthy} healthy</span>
    </span>
  );
}

const EDGE: Record<string, string> = {
  ready: "border-good",
  degraded: "border-warn",
  draining: "border-busy border-dashed",
  drained: "border-muted border-dashed",
  failed: "border-bad",
  removed: "border-line opacity-60",
};

interface BlockProps {
  member: Member;
  allocation: Allocation | undefined;
  lit: string | undefined;
  light: (id: string | undefined) => void;
}

function Block({ member, allocation, lit, light }: BlockProps) {
  const meaning = useMeaning();
  const slots = allocation?.slots ?? [];
  const simulated = slots.some((each) => each.simulated) ? ", simulated" : "";
  return (
    <button
      type="button"
      title={meaning("member", member.status)}
      onMouseEnter={() => light(member.id)}
      onMouseLeave={() => light(undefined)}
      onFocus={() => light(member.id)}
      onBlur={() => light(undefined)}
      onClick={() => document.getElementById(`row-${member.id}`)?.querySelector<HTMLElement>("input, button")?.focus()}
      className={`rounded-md border-2 px-2 py-1 text-left ${EDGE[member.status] ?? "border-busy"} ${
        lit === member.id ? "bg-accent-soft" : "bg-panel"
      }`}
    >
      <span className="block text-xs font-medium">{member.name}</span>
      <span className="block text-[11px] text-muted">{member.status}</span>
      <span className="sr-only">
        {member.health}, GPU slots: {slots.length}
        {simulated}
      </span>
      <span className="mt-1 flex gap-0.5" aria-hidden>
        {slots.slice(0, SLOTS_MAX).map((each) => (
          <span key={each.index} title={`slot ${each.index}`} className="size-2.5 rounded-[2px] bg-accent" />
        ))}
        {slots.length > SLOTS_MAX && <span className="text-[11px]">+{slots.length - SLOTS_MAX}</span>}
      </span>
    </button>
  );
}
