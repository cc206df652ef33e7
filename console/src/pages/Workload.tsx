/** One workload: what it is, how it does, what can be done with it. The tabs are parts of this page. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer, api, type Instance, isProblem } from "../api/client";
import { instance as instanceQuery } from "../api/queries/runtime";
import { useTimeline } from "../api/stream";
import { ActionDialog } from "../parts/Dialog";
import { Status } from "../parts/Status";
import { useTenant } from "../parts/session";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, CopyButton, PageHead, ProblemBox, Skeleton } from "../parts/ui";
import { TABS } from "../router";
import { NotFoundBody } from "./NotFound";
import { Cost } from "./workload/Cost";
import { Logs } from "./workload/Logs";
import { Members } from "./workload/Members";
import { Operations } from "./workload/Operations";
import { Overview } from "./workload/Overview";
import { Receipts } from "./workload/Receipts";
import { TimelineTab } from "./workload/TimelineTab";
import { missing } from "./workload/verbs";

export function Workload() {
  const { id } = useParams({ from: "/shell/workloads/$id" });
  const tenant = useTenant();
  const found = useQuery(instanceQuery(tenant, id));
  useTitle(found.data?.name ?? "Workload");
  if (isProblem(found.error, 404)) return <NotFoundBody noun="workload" />;
  if (found.error && !found.data) return <ProblemBox error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={8} />;
  return <WorkloadPage key={id} instance={found.data} interrupted={isProblem(found.error, 0)} />;
}

function WorkloadPage({ instance, interrupted }: { instance: Instance; interrupted: boolean }) {
  const { tab = "overview" } = useSearch({ from: "/shell/workloads/$id" });
  const queries = useQueryClient();
  const refresh = () => void queries.invalidateQueries({ queryKey: ["instance", instance.id] });
  const timeline = useTimeline(instance.project_id, instance.id, refresh);
  return (
    <>
      <PageHead
        title={instance.name}
        sub={
          <>
            {instance.app} {instance.version} · launched <Ago at={instance.created_at} />
          </>
        }
      >
        <Actions instance={instance} done={refresh} />
      </PageHead>
      {interrupted && (
        <p role="status" className="mb-4 rounded-md bg-warn-soft px-4 py-2 text-warn">
          The server does not answer; what you see may be out of date. The page tries again.
        </p>
      )}
      <div className="mb-4 flex flex-wrap items-center gap-2" role="status" aria-label="State">
        <Status kind="instance" value={instance.status} />
        {instance.status === "running" && <Status kind="health" value={instance.health} />}
        {instance.operation && (
          <span className="text-xs text-muted">
            {instance.operation.kind}: {instance.operation.status}
            {instance.operation.blocker && `, ${instance.operation.blocker}`}
          </span>
        )}
        <span className="flex items-center font-mono text-xs text-muted max-sm:hidden">
          {instance.id}
          <CopyButton text={instance.id} label="Copy the id" />
        </span>
      </div>
      <nav aria-label="Parts of the workload" className="mb-5 flex gap-1 overflow-x-auto border-b border-line">
        {TABS.map((each) => (
          <Link
            key={each}
            to="/workloads/$id"
            params={{ id: instance.id }}
            search={{ tab: each === "overview" ? undefined : each }}
            activeOptions={{ includeSearch: false }}
            aria-current={each === tab ? "page" : false}
            className={`-mb-px border-b-2 px-3 py-2 font-medium capitalize focus-visible:-outline-offset-2 ${
              each === tab ? "border-accent text-accent" : "border-transparent text-muted hover:text-ink"
            }`}
          >
            {each}
          </Link>
        ))}
      </nav>
      {tab === "overview" && <Overview instance={instance} />}
      {tab === "timeline" && <TimelineTab instance={instance} timeline={timeline} />}
      {tab === "members" && <Members instance={instance} done={refresh} />}
      {tab === "operations" && <Operations instance={instance} done={refresh} />}
      {tab === "logs" && <Logs instance={instance} />}
      {tab === "cost" && <Cost instance={instance} />}
      {tab === "receipts" && <Receipts instance={instance} />}
    </>
  );
}

function Actions({ instance, done }: { instance: Instance; done: () => void }) {
  const [open, setOpen] = useState<"stop" | "restart" | null>(null);
  const path = { project_id: instance.project_id, instance_id: instance.id };
  const members = instance.members_summary.reduce((sum, each) => sum + each.current, 0);
  if (instance.status === "stopped") return null;
  return (
    <>
      <Button onClick={() => setOpen("restart")} disabledReason={missing(instance, "restart", "instance.update")}>
        Restart
      </Button>
      <Button
        look="danger"
        onClick={() => setOpen("stop")}
        disabledReason={missing(instance, "stop", "instance.delete")}
      >
        Stop
      </Button>
      {open === "stop" && (
        <ActionDialog
          title={`Stop ${instance.name}?`}
          confirm="Stop it"
          danger
          command={`mooring stop ${instance.name} --wait`}
          close={() => setOpen(null)}
          act={async (key) => {
            await answer(
              api.POST("/api/v1/projects/{project_id}/app-instances/{instance_id}/stop", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            done();
          }}
        >
          <p>
            It stops for good: {members} {members === 1 ? "member is" : "members are"} torn down, with everything that
            they have stored on their machines. Each leaves a receipt that says that nothing is left.
          </p>
        </ActionDialog>
      )}
      {open === "restart" && (
        <ActionDialog
          title={`Restart ${instance.name}?`}
          confirm="Restart"
          command={`mooring instances restart ${instance.name}`}
          close={() => setOpen(null)}
          act={async (key) => {
            await answer(
              api.POST("/api/v1/projects/{project_id}/app-instances/{instance_id}/restart", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            done();
          }}
        >
          <p>Its programs end and start again on the same machines. It is not reachable for a moment.</p>
        </ActionDialog>
      )}
    </>
  );
}
