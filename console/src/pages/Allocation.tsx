/** One allocation: where it is, what it costs, who uses it, and its release with what that ends. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer, api, isProblem } from "../api/client";
import { type Allocation as AllocationView, allocation, type Use, usesOf } from "../api/queries/allocations";
import { ActionDialog } from "../parts/Dialog";
import { Status } from "../parts/Status";
import { useProject } from "../parts/session";
import { Ago, money } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, CopyButton, Definition, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { NotFoundBody } from "./NotFound";
import { missing } from "./workload/verbs";

export function Allocation() {
  const { id } = useParams({ from: "/shell/allocations/$id" });
  const { project, isLoaded } = useProject(useSearch({ from: "/shell/allocations/$id" }).project);
  const found = useQuery(allocation(project?.id, id));
  useTitle(found.data?.name ?? "Allocation");
  if (isProblem(found.error, 404) || (isLoaded && !project)) return <NotFoundBody noun="allocation" />;
  if (found.error && !found.data) return <ProblemBox error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={8} />;
  return <AllocationPage allocation={found.data} />;
}

function AllocationPage({ allocation }: { allocation: AllocationView }) {
  const uses = useQuery(usesOf(allocation.project_id, allocation.id));
  const isHeld = allocation.status === "active";
  return (
    <>
      <PageHead
        title={allocation.name}
        sub={
          <>
            {allocation.gpu_count} × {allocation.gpu_model}, SKU {allocation.sku}
          </>
        }
      >
        <Actions allocation={allocation} uses={uses.data ?? []} />
      </PageHead>
      <div className="mb-4 flex flex-wrap items-center gap-2" role="status" aria-label="State">
        <Status kind="allocation" value={allocation.status} />
        {isHeld && uses.data?.length === 0 && (
          <span className="text-xs text-warn">idle: no member stands on it, and it is charged</span>
        )}
        <span className="flex items-center font-mono text-xs text-muted max-sm:hidden">
          {allocation.id}
          <CopyButton text={allocation.id} label="Copy the id" />
        </span>
      </div>
      {(allocation.blocker || allocation.failure_detail) && (
        <div className="mb-5 rounded-lg border border-warn/40 bg-warn-soft p-4 text-warn">
          <p className="font-semibold">
            {allocation.status === "release_failed" ? "The teardown left something" : "What it waits for"}
          </p>
          <p className="mt-1 break-words">{allocation.blocker ?? allocation.failure_detail}</p>
          {allocation.retry_at && (
            <p className="mt-1 text-xs">
              The platform tries again <Ago at={allocation.retry_at} />.
            </p>
          )}
        </div>
      )}
      <div className="grid gap-5 lg:grid-cols-2">
        <Panel title="Where and when">
          <dl className="grid grid-cols-2 gap-4 p-4">
            <Definition label="Region">{allocation.region ?? `one of ${allocation.regions.join(", ")}`}</Definition>
            <Definition label="Machine">{allocation.node_id ?? "not placed yet"}</Definition>
            <Definition label="Isolation">{allocation.isolation ?? "not known yet"}</Definition>
            <Definition label="GPUs">
              {allocation.slots.length === 0
                ? "none yet"
                : allocation.slots.map((each) => `${each.index}${each.simulated ? " (simulated)" : ""}`).join(", ")}
            </Definition>
            <Definition label="Requested">
              <Ago at={allocation.created_at} />
            </Definition>
            <Definition label={allocation.released_at ? "Released" : "Active"}>
              {allocation.released_at ? (
                <Ago at={allocation.released_at} />
              ) : allocation.activated_at ? (
                <Ago at={allocation.activated_at} />
              ) : (
                <>
                  not yet; fails <Ago at={allocation.deadline_at} /> without a place
                </>
              )}
            </Definition>
            {allocation.teardown_proof && (
              <Definition label="Proof of its end">{allocation.teardown_proof.replaceAll("_", " ")}</Definition>
            )}
          </dl>
        </Panel>
        <Panel title="Cost">
          <dl className="grid grid-cols-2 gap-4 p-4">
            <Definition label="Per hour">
              {money(allocation.charge.price_minor_per_gpu_hour * allocation.gpu_count, allocation.charge.currency)}
            </Definition>
            <Definition label="Clock">
              {allocation.charge.ended_at ? (
                <>
                  stopped <Ago at={allocation.charge.ended_at} />
                </>
              ) : allocation.charge.started_at ? (
                <>
                  runs since <Ago at={allocation.charge.started_at} />
                </>
              ) : (
                "not started"
              )}
            </Definition>
            <Definition label="Rule" wide>
              {allocation.charge.rule}
            </Definition>
          </dl>
        </Panel>
        <Panel title="Used by" className="lg:col-span-2">
          {uses.error ? (
            <ProblemBox error={uses.error} />
          ) : !uses.data ? (
            <Skeleton />
          ) : uses.data.length === 0 ? (
            <Empty title="No member stands on it" command={`mooring launch APP --allocation ${allocation.name}`}>
              {isHeld ? "It is charged although nothing runs on it. Launch an app on it, or release it." : ""}
            </Empty>
          ) : (
            uses.data.map((each) => <UseRow key={each.instance.id} use={each} />)
          )}
        </Panel>
      </div>
    </>
  );
}

function UseRow({ use }: { use: Use }) {
  return (
    <div className="flex flex-wrap items-center gap-x-4 gap-y-1 px-4 py-3">
      <Link to="/workloads/$id" params={{ id: use.instance.id }} className="link">
        {use.instance.name}
      </Link>
      <Status kind="instance" value={use.instance.status} />
      <span className="text-muted">members {use.members.map((each) => each.name).join(", ")}</span>
    </div>
  );
}

function Actions({ allocation, uses }: { allocation: AllocationView; uses: Use[] }) {
  const [open, setOpen] = useState<"release" | "retry" | null>(null);
  const queries = useQueryClient();
  const path = { project_id: allocation.project_id, allocation_id: allocation.id };
  const members = uses.flatMap((each) => each.members.map((member) => ({ member, instance: each.instance })));
  if (allocation.status === "released") return null;
  const done = () => queries.invalidateQueries({ queryKey: ["allocation", allocation.id] });
  return (
    <>
      {allocation.allowed_verbs.includes("retry") && (
        <Button onClick={() => setOpen("retry")} disabledReason={missing(allocation, "retry", "allocation.release")}>
          Retry the teardown
        </Button>
      )}
      <Button
        look="danger"
        onClick={() => setOpen("release")}
        disabledReason={missing(allocation, "release", "allocation.release")}
      >
        Release
      </Button>
      {open === "release" && (
        <ActionDialog
          title={`Release ${allocation.name}?`}
          confirm="Release it"
          danger
          command={`mooring allocations release ${allocation.name} --wait`}
          close={() => setOpen(null)}
          act={async (key) => {
            await answer(
              api.POST("/api/v1/projects/{project_id}/allocations/{allocation_id}/release", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            await done();
          }}
        >
          {members.length === 0 ? (
            <p>No member stands on it: no workload loses its place.</p>
          ) : (
            <>
              <p className="font-medium text-bad">
                {members.length === 1 ? "1 member loses its place" : `${members.length} members lose their place`}, with
                everything that is stored there:
              </p>
              <ul className="list-disc space-y-0.5 pl-5">
                {members.map(({ member, instance }) => (
                  <li key={member.id}>
                    {member.name} of {instance.name}
                  </li>
                ))}
              </ul>
            </>
          )}
          <p>The clock of its cost stops now. It ends when its machine has checked that nothing is left.</p>
        </ActionDialog>
      )}
      {open === "retry" && (
        <ActionDialog
          title={`Retry the teardown of ${allocation.name}?`}
          confirm="Retry now"
          command={`mooring allocations retry ${allocation.name}`}
          close={() => setOpen(null)}
          act={async (key) => {
            await answer(
              api.POST("/api/v1/projects/{project_id}/allocations/{allocation_id}/retry", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            await done();
          }}
        >
          <p>The machine looks again for what was left: {allocation.blocker ?? "it did not say what"}.</p>
        </ActionDialog>
      )}
    </>
  );
}
