/** One verb for several workloads, one after another; the dialog names each, and what of it is lost. */
import { answer, api, type Instance } from "../api/client";
import { ActionDialog } from "./Dialog";

export type BulkVerb = "stop" | "drain";

const TEXT: Record<BulkVerb, { confirm: string; text: string }> = {
  stop: {
    confirm: "Stop them",
    text: "They stop for good. Their members are torn down with everything that they have stored on their machines, and leave receipts.",
  },
  drain: {
    confirm: "Drain their members",
    text: "Every member that is ready finishes its work and accepts no more. The workloads and their machines stay.",
  },
};

interface BulkDialogProps {
  instances: Instance[];
  verb: BulkVerb;
  close: () => void;
  done: () => void;
}

export function BulkDialog({ instances, verb, close, done }: BulkDialogProps) {
  const { confirm, text } = TEXT[verb];
  const act = async (key: string) => {
    for (const each of instances) await (verb === "stop" ? stop(each, key) : drain(each, key));
    done();
  };
  return (
    <ActionDialog
      title={`${verb === "stop" ? "Stop" : "Drain"} ${instances.length} ${instances.length === 1 ? "workload" : "workloads"}?`}
      confirm={confirm}
      danger={verb === "stop"}
      command={instances
        .map((each) =>
          verb === "stop"
            ? `mooring stop ${each.name}`
            : `mooring instances members drain ${each.name} MEMBER   # each that is ready`,
        )
        .join("\n")}
      close={close}
      act={act}
    >
      <ul className="max-h-48 list-disc overflow-auto rounded-md bg-sunken py-2 pr-3 pl-7">
        {instances.map((each) => {
          const count = each.members_summary.reduce((sum, part) => sum + part.current, 0);
          return (
            <li key={each.id}>
              <span className="font-medium">{each.name}</span>{" "}
              <span className="text-xs text-muted">
                {each.app}, {count} {count === 1 ? "member" : "members"}
              </span>
            </li>
          );
        })}
      </ul>
      <p>{text}</p>
    </ActionDialog>
  );
}

const BASE = "/api/v1/projects/{project_id}/app-instances/{instance_id}" as const;

async function stop(instance: Instance, key: string): Promise<void> {
  const path = { project_id: instance.project_id, instance_id: instance.id };
  const header = { "Idempotency-Key": `${key}-${instance.id.slice(-8)}` };
  await answer(api.POST(`${BASE}/stop`, { params: { path, header } }));
}

async function drain(instance: Instance, key: string): Promise<void> {
  const path = { project_id: instance.project_id, instance_id: instance.id };
  const listed = await answer(api.GET(`${BASE}/members`, { params: { path, query: { limit: 200, status: "ready" } } }));
  for (const each of listed.items) {
    const params = {
      path: { ...path, member_id: each.id },
      header: { "Idempotency-Key": `${key}-${each.id.slice(-8)}` },
    };
    await answer(api.POST(`${BASE}/members/{member_id}/drain`, { params, body: {} }));
  }
}
