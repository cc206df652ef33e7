/** What a state needs to say beside its name: the stage of a start, what a stop waits for, how it failed, the proof. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import ShieldAlert from "lucide-react/icons/shield-alert";
import ShieldCheck from "lucide-react/icons/shield-check";
import Unplug from "lucide-react/icons/unplug";
import type { ReactNode } from "react";
import type { Instance } from "../../api/client";
import { members as membersQuery, operations } from "../../api/queries/runtime";
import { Ago, Elapsed } from "../../parts/time";
import { Panel } from "../../parts/ui";

export function Phase({ instance }: { instance: Instance }) {
  const { status } = instance;
  return (
    <>
      {status !== "stopped" && <Unreachable instance={instance} />}
      {(status === "created" || status === "starting") && <Starting instance={instance} />}
      {status === "stopping" && <Stopping instance={instance} />}
      {instance.failure_code && <Failure instance={instance} />}
      {status === "stopped" && <Proof instance={instance} />}
    </>
  );
}

function Wide({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Panel title={title} className="lg:col-span-2">
      <div className="space-y-2 p-4">{children}</div>
    </Panel>
  );
}

/** A silent node is not a failed member: what runs there may be well. */
function Unreachable({ instance }: { instance: Instance }) {
  const silent = useQuery(membersQuery(instance)).data?.items.filter((each) => each.node_reachable === false) ?? [];
  if (silent.length === 0) return null;
  return (
    <p className="flex gap-2 rounded-md bg-warn-soft p-3 text-warn lg:col-span-2">
      <Unplug size={16} aria-hidden className="mt-0.5 shrink-0" />
      <span>
        The node of {silent.map((each) => each.name).join(", ")} does not answer. That is not a failure: the health is
        unknown until it answers again, and nothing counts as gone.
      </span>
    </p>
  );
}

function Starting({ instance }: { instance: Instance }) {
  const deploy = useQuery(operations(instance)).data?.items.find((each) => each.kind === "deploy");
  const steps = deploy?.steps ?? [];
  const running = steps.filter((each) => !each.ended_at);
  const done = steps.length - running.length;
  return (
    <Wide title="Starting">
      <p>
        {running[0] ? (
          <>
            Stage <code className="font-mono text-xs">{running[0].name}</code>
            {running[0].detail && `: ${running[0].detail}`}
          </>
        ) : (
          "Waiting for its adapter to begin"
        )}
        , for{" "}
        <span className="tabular-nums">
          <Elapsed since={instance.created_at} />
        </span>
      </p>
      {steps.length > 0 && (
        <p className="flex items-center gap-3 text-xs text-muted">
          <progress className="h-2 w-full max-w-sm accent-accent" max={steps.length} value={done} aria-label="Steps" />
          {done} of {steps.length} steps that are known so far
        </p>
      )}
    </Wide>
  );
}

function Stopping({ instance }: { instance: Instance }) {
  const found = useQuery(membersQuery(instance)).data?.items.filter((each) => each.status !== "removed");
  return (
    <Wide title="Stopping">
      {instance.stop_requested_at && (
        <p>
          For{" "}
          <span className="tabular-nums">
            <Elapsed since={instance.stop_requested_at} />
          </span>
          . It is stopped when each member has its receipt.
        </p>
      )}
      <ul className="space-y-1">
        {found?.map((each) => (
          <li key={each.id} className="break-words">
            <span className="font-medium">{each.name}</span>{" "}
            {each.node_id ? (
              <>
                waits for the receipt of node <span className="font-mono text-xs">{each.node_id}</span>
              </>
            ) : (
              "was not placed on a node"
            )}
            {each.blocker && <span className="block text-xs text-warn">{each.blocker}</span>}
          </li>
        ))}
      </ul>
    </Wide>
  );
}

function Failure({ instance }: { instance: Instance }) {
  return (
    <Wide title="How it failed">
      <p className="break-words">
        <code className="font-mono text-xs font-semibold text-bad">{instance.failure_code}</code>
        {instance.failed_at && (
          <span className="text-xs text-muted">
            {" "}
            <Ago at={instance.failed_at} />
          </span>
        )}
        {instance.failure_detail && <span className="block">{instance.failure_detail}</span>}
      </p>
      {instance.last_lines.length > 0 && (
        <>
          <p className="text-xs text-muted">Its last lines of output</p>
          <pre className="overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
            {instance.last_lines.join("\n")}
          </pre>
        </>
      )}
    </Wide>
  );
}

function Proof({ instance }: { instance: Instance }) {
  const isProven = instance.teardown_proof === "receipts";
  const Icon = isProven ? ShieldCheck : ShieldAlert;
  return (
    <p
      className={`flex flex-wrap items-center gap-x-3 gap-y-1 rounded-md p-3 lg:col-span-2 ${isProven ? "bg-good-soft" : "bg-warn-soft"}`}
    >
      <Icon size={18} aria-hidden className={isProven ? "text-good" : "text-warn"} />
      <span className="font-semibold">
        {isProven ? "Proven for each member: nothing is left" : "Written off: nobody checked what is left"}
      </span>
      <Link to="/workloads/$id" params={{ id: instance.id }} search={{ tab: "receipts" }} className="link">
        {isProven ? "Verify the receipts" : "See what may be left"}
      </Link>
    </p>
  );
}
