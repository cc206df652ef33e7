/** One workload: what it is, how it does, what can be done with it. The tabs are parts of this page. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { type Instance, isProblem } from "../api/client";
import { instance as instanceQuery } from "../api/queries/runtime";
import { useTimeline } from "../api/stream";
import { Status } from "../parts/Status";
import { useTenant } from "../parts/session";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, CopyButton, PageHead, ProblemBox, Skeleton } from "../parts/ui";
import { TABS } from "../router";
import { NotFoundBody } from "./NotFound";
import { Actions as AppActions } from "./workload/Actions";
import { Config } from "./workload/Config";
import { Cost } from "./workload/Cost";
import { hindered, InstanceDialog, type InstanceVerb } from "./workload/InstanceDialog";
import { Logs } from "./workload/Logs";
import { Members } from "./workload/Members";
import { Metrics } from "./workload/Metrics";
import { Operations } from "./workload/Operations";
import { Overview } from "./workload/Overview";
import { Receipts } from "./workload/Receipts";
import { TimelineTab } from "./workload/TimelineTab";

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
  const [verb, setVerb] = useState<InstanceVerb | null>(null);
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
        <Actions instance={instance} act={setVerb} />
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
      {tab === "overview" && <Overview instance={instance} act={setVerb} />}
      {tab === "timeline" && <TimelineTab instance={instance} timeline={timeline} />}
      {tab === "members" && <Members instance={instance} done={refresh} />}
      {tab === "operations" && <Operations instance={instance} done={refresh} />}
      {tab === "actions" && <AppActions instance={instance} />}
      {tab === "config" && <Config instance={instance} done={refresh} />}
      {tab === "logs" && <Logs instance={instance} />}
      {tab === "cost" && <Cost instance={instance} />}
      {tab === "metrics" && <Metrics instance={instance} />}
      {tab === "receipts" && <Receipts instance={instance} />}
      {verb && <InstanceDialog instance={instance} verb={verb} close={() => setVerb(null)} done={refresh} />}
    </>
  );
}

function Actions({ instance, act }: { instance: Instance; act: (verb: InstanceVerb) => void }) {
  if (instance.status === "stopped") return null;
  return (
    <>
      <Button onClick={() => act("restart")} disabledReason={hindered(instance, "restart")}>
        Restart
      </Button>
      <Button look="danger" onClick={() => act("stop")} disabledReason={hindered(instance, "stop")}>
        Stop
      </Button>
    </>
  );
}
