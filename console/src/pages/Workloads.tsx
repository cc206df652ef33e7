/** Every instance of the tenant or of one project; the server filters and pages, the URL has the filter. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import type { Instance } from "../api/client";
import { instances } from "../api/queries/runtime";
import { BulkDialog, type BulkVerb } from "../parts/BulkDialog";
import { type Column, DataTable } from "../parts/DataTable";
import { Choice, FilterBar, Switch, TextFilter } from "../parts/Filters";
import { ProjectPicker } from "../parts/ProjectPicker";
import { Status } from "../parts/Status";
import { useProject, useScope } from "../parts/session";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, Empty, PageHead } from "../parts/ui";
import { GROUPINGS, HEALTHS, INSTANCE_STATES, type WorkloadsSearch } from "../router";

export function Workloads() {
  useTitle("Workloads");
  const filter = useSearch({ from: "/shell/workloads" });
  const navigate = useNavigate({ from: "/workloads" });
  const { tenant, project } = useScope(filter.project);
  const { projects } = useProject(filter.project);
  const { group, ...wanted } = filter;
  const page = useQuery(instances(tenant, { ...wanted, project }));
  const [chosen, setChosen] = useState<string[]>([]);
  const [verb, setVerb] = useState<BulkVerb | null>(null);
  const slugs = new Map(projects.map((each) => [each.id, each.slug]));
  const picked = (page.data?.items ?? []).filter((each) => chosen.includes(each.id));
  const toggle = (id: string) =>
    setChosen((before) => (before.includes(id) ? before.filter((each) => each !== id) : [...before, id]));
  const set = (change: WorkloadsSearch, replace = false) =>
    void navigate({ replace, search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const isFiltered = Boolean(filter.q || filter.status || filter.health || filter.attention || filter.project);

  return (
    <>
      <PageHead title="Workloads" sub="Everything that was launched, the newest first.">
        <Button
          onClick={() => setVerb("drain")}
          disabledReason={picked.length === 0 ? "choose workloads in the list first" : bulkReason(picked, "drain")}
        >
          Drain {picked.length > 0 && picked.length}
        </Button>
        <Button
          look="danger"
          onClick={() => setVerb("stop")}
          disabledReason={picked.length === 0 ? "choose workloads in the list first" : bulkReason(picked, "stop")}
        >
          Stop {picked.length > 0 && picked.length}
        </Button>
        <Link
          to="/catalog"
          className="inline-flex min-h-8 items-center rounded-md bg-accent px-3 font-medium text-accent-ink hover:brightness-110"
        >
          Launch an app
        </Link>
      </PageHead>
      <FilterBar isFiltered={isFiltered} clear={() => void navigate({ search: {} })}>
        <TextFilter
          label="Name or id"
          placeholder="Name or id begins with"
          value={filter.q}
          onChange={(q) => set({ q }, true)}
        />
        <Choice label="State" words={INSTANCE_STATES} value={filter.status} onChange={(status) => set({ status })} />
        <Choice label="Health" words={HEALTHS} value={filter.health} onChange={(health) => set({ health })} />
        <ProjectPicker
          projects={projects}
          value={project}
          all={tenant ? "All projects" : undefined}
          onChange={(project) => set({ project })}
        />
        <Switch label="Needs attention" value={filter.attention} onChange={(attention) => set({ attention })} />
        <Choice label="Group" words={GROUPINGS} value={group} onChange={(group) => set({ group })} />
      </FilterBar>
      <DataTable
        label="Workloads"
        columns={columns(slugs, chosen, toggle)}
        query={page}
        rowKey={(each) => each.id}
        groupOf={group && ((each) => (group === "app" ? each.app : (slugs.get(each.project_id) ?? each.project_id)))}
        pages={{ cursor: filter.cursor, go: (cursor) => set({ cursor }) }}
        empty={
          isFiltered ? (
            <Empty title="Nothing matches the filter" command="mooring instances list" />
          ) : (
            <Empty title="Nothing was launched yet" command="mooring launch hello --open">
              Choose an app in the catalog; it runs in a minute.
            </Empty>
          )
        }
      />
      {verb && (
        <BulkDialog
          instances={picked}
          verb={verb}
          close={() => setVerb(null)}
          done={() => {
            setChosen([]);
            void page.refetch();
          }}
        />
      )}
    </>
  );
}

/** Why the verb cannot be used with all that are chosen, named by the first with which it cannot. */
function bulkReason(picked: Instance[], verb: BulkVerb): string | undefined {
  const key = verb === "stop" ? "instance.delete" : "instance.update";
  for (const each of picked) {
    if (!each.allowed_actions.includes(key)) return `${each.name}: you need ${key}, or it is ${each.status}`;
    if (verb === "stop" && !each.allowed_verbs.includes("stop")) return `${each.name}: not while it is ${each.status}`;
    if (verb === "drain" && each.status !== "running") return `${each.name}: not while it is ${each.status}`;
  }
  return undefined;
}

function columns(slugs: Map<string, string>, chosen: string[], toggle: (id: string) => void): Column<Instance>[] {
  return [
    {
      head: "Name",
      narrow: "line",
      cell: (each) => (
        <div className="flex items-start gap-3">
          <input
            type="checkbox"
            aria-label={`Choose ${each.name}`}
            className="mt-0.5 size-4 shrink-0 accent-accent"
            checked={chosen.includes(each.id)}
            onChange={() => toggle(each.id)}
          />
          <div className="min-w-0">
            <Name instance={each} />
          </div>
        </div>
      ),
    },
    {
      head: "App",
      cell: (each) => (
        <>
          {each.app} <span className="text-muted">{each.version}</span>
        </>
      ),
    },
    { head: "State", cell: (each) => <Status kind="instance" value={each.status} /> },
    { head: "Health", cell: (each) => each.status === "running" && <Status kind="health" value={each.health} /> },
    { head: "Members", cell: (each) => <MembersCount instance={each} /> },
    { head: "Project", cell: (each) => <span className="text-muted">{slugs.get(each.project_id)}</span> },
    {
      head: "Launched",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.created_at} />
        </span>
      ),
    },
  ];
}

function Name({ instance }: { instance: Instance }) {
  return (
    <>
      <Link to="/workloads/$id" params={{ id: instance.id }} className="font-medium hover:underline">
        {instance.name}
      </Link>
      {instance.needs_attention && (
        <p className="max-w-xs truncate text-xs text-warn">
          {instance.failure_detail ?? instance.operation?.blocker ?? instance.health_detail ?? "needs attention"}
        </p>
      )}
    </>
  );
}

function MembersCount({ instance }: { instance: Instance }) {
  const healthy = instance.members_summary.reduce((sum, each) => sum + each.healthy, 0);
  const desired = instance.members_summary.reduce((sum, each) => sum + each.desired, 0);
  return (
    <span className="tabular-nums">
      {healthy}/{desired}
      <span className="text-muted md:sr-only"> healthy</span>
    </span>
  );
}
