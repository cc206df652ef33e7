/** What a project holds: where it is, what it costs, what it waits for. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { type Allocation, allocations, groups } from "../api/queries/allocations";
import { type Column, DataTable } from "../parts/DataTable";
import { Choice, FilterBar } from "../parts/Filters";
import { ProjectPicker } from "../parts/ProjectPicker";
import { useLack } from "../parts/place";
import { RequestAllocation } from "../parts/RequestAllocation";
import { Status } from "../parts/Status";
import { useProject } from "../parts/session";
import { Ago, money } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, Empty, PageHead } from "../parts/ui";
import { ALLOCATION_STATES, type AllocationsSearch } from "../routes/fleet";

export function Allocations() {
  useTitle("Allocations");
  const filter = useSearch({ from: "/shell/allocations" });
  const navigate = useNavigate({ from: "/allocations" });
  const queries = useQueryClient();
  const { project, projects, isLoaded } = useProject(filter.project);
  const [isOpen, setOpen] = useState(false);
  const page = useQuery(
    allocations(project?.id, { status: filter.status, group_id: filter.group, cursor: filter.cursor }),
  );
  const known = useQuery(groups(project?.id)).data?.items ?? [];
  const lack = useLack(project && { scope: "project", id: project.id });
  const set = (change: AllocationsSearch) =>
    void navigate({ search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const isFiltered = Boolean(filter.status || filter.group);
  return (
    <>
      <PageHead title="Allocations" sub="The machines and parts of machines that a project holds, and what they cost.">
        <Link to="/allocations/explain" search={{ project: project?.id }} className="link self-center px-2">
          What would fit?
        </Link>
        <Button look="primary" onClick={() => setOpen(true)} disabledReason={lack("allocation.create")}>
          Request capacity
        </Button>
      </PageHead>
      <FilterBar isFiltered={isFiltered} clear={() => set({ status: undefined, group: undefined })}>
        <ProjectPicker
          projects={projects}
          value={project?.id}
          onChange={(next) => set({ project: next, group: undefined })}
        />
        <Choice label="State" words={ALLOCATION_STATES} value={filter.status} onChange={(status) => set({ status })} />
        {known.length > 0 && (
          <select
            aria-label="Group"
            className="field w-auto"
            value={filter.group ?? ""}
            onChange={(event) => set({ group: event.target.value || undefined })}
          >
            <option value="">Group: any</option>
            {known.map((each) => (
              <option key={each.id} value={each.id}>
                {each.name}
              </option>
            ))}
          </select>
        )}
      </FilterBar>
      {isLoaded && !project ? (
        <Empty title="There is no project yet" command="mooring projects create --slug research">
          An allocation belongs to a project; an admin of the tenant creates one.
        </Empty>
      ) : (
        <DataTable
          label="Allocations"
          columns={columns(new Map(known.map((each) => [each.id, each.name])))}
          query={page}
          rowKey={(each) => each.id}
          pages={{ cursor: filter.cursor, go: (cursor) => set({ cursor }) }}
          empty={
            isFiltered ? (
              <Empty title="No allocation is like this" command="mooring allocations list" />
            ) : (
              <Empty title="This project holds nothing" command="mooring allocations create --sku gpu --wait">
                An allocation is a machine or a part of one. Launching an app takes one by itself; request one here to
                keep it between launches.
              </Empty>
            )
          }
        />
      )}
      {isOpen && project && (
        <RequestAllocation
          project={project}
          close={() => setOpen(false)}
          done={() => void queries.invalidateQueries({ queryKey: ["allocations"] })}
        />
      )}
    </>
  );
}

function columns(names: Map<string, string>): Column<Allocation>[] {
  return [
    { head: "Name", narrow: "line", cell: (each) => <Name allocation={each} /> },
    { head: "State", cell: (each) => <Status kind="allocation" value={each.status} /> },
    {
      head: "Capacity",
      cell: (each) => (
        <>
          {each.gpu_count} × {each.gpu_model} <span className="text-muted">{each.sku}</span>
        </>
      ),
    },
    {
      head: "Where",
      narrow: "hidden",
      cell: (each) => <span className="text-muted">{each.region ?? each.regions.join(", ")}</span>,
    },
    {
      head: "Group",
      narrow: "hidden",
      cell: (each) => <span className="text-muted">{each.group_id && (names.get(each.group_id) ?? "a group")}</span>,
    },
    { head: "Per hour", isNumber: true, cell: (each) => <Price allocation={each} /> },
    {
      head: "Held",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.activated_at ?? each.created_at} />
        </span>
      ),
    },
  ];
}

function Name({ allocation }: { allocation: Allocation }) {
  const { id, project_id, blocker, failure_detail } = allocation;
  const detail = blocker ?? failure_detail;
  return (
    <>
      <Link
        to="/allocations/$id"
        params={{ id }}
        search={{ project: project_id }}
        className="font-medium hover:underline"
      >
        {allocation.name}
      </Link>
      {detail && <p className="max-w-sm text-xs text-warn md:truncate">{detail}</p>}
    </>
  );
}

function Price({ allocation }: { allocation: Allocation }) {
  const { charge, gpu_count } = allocation;
  const price = money(charge.price_minor_per_gpu_hour * gpu_count, charge.currency);
  return charge.started_at && !charge.ended_at ? (
    price
  ) : (
    <span className="text-muted" title="It is not charged now">
      <s>{price}</s>
    </span>
  );
}
