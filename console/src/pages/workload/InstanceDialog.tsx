/** What can be done with the whole workload: stop, restart, repair. Each names what is lost. */
import { answer, api, type Instance } from "../../api/client";
import { ActionDialog } from "../../parts/Dialog";
import { missing } from "./verbs";

export type InstanceVerb = "stop" | "restart" | "repair";

export const ACTION_KEY: Record<InstanceVerb, string> = {
  stop: "instance.delete",
  restart: "instance.update",
  repair: "instance.update",
};

/** Why the verb cannot be used now, if it cannot. */
export function hindered(instance: Instance, verb: InstanceVerb): string | undefined {
  return missing(instance, verb, ACTION_KEY[verb]);
}

const TEXT: Record<InstanceVerb, { confirm: string; command: string; text: (members: string) => string }> = {
  stop: {
    confirm: "Stop it",
    command: "stop",
    text: (members) =>
      `It stops for good: ${members} torn down, with everything that they have stored on their machines. Each leaves a receipt that says that nothing is left.`,
  },
  restart: {
    confirm: "Restart",
    command: "instances restart",
    text: (members) =>
      `Its programs end and start again on the same machines: ${members} restarted. It is not reachable for a moment.`,
  },
  repair: {
    confirm: "Repair",
    command: "instances repair",
    text: () => "Its adapter looks at every member and rebuilds what is broken. What works is left alone.",
  },
};

interface InstanceDialogProps {
  instance: Instance;
  verb: InstanceVerb;
  close: () => void;
  done: () => void;
}

export function InstanceDialog({ instance, verb, close, done }: InstanceDialogProps) {
  const { confirm, command, text } = TEXT[verb];
  const count = instance.members_summary.reduce((sum, each) => sum + each.current, 0);
  const path = { project_id: instance.project_id, instance_id: instance.id };
  const base = "/api/v1/projects/{project_id}/app-instances/{instance_id}" as const;
  const act = async (key: string) => {
    const params = { path, header: { "Idempotency-Key": key } };
    if (verb === "stop") await answer(api.POST(`${base}/stop`, { params }));
    else if (verb === "restart") await answer(api.POST(`${base}/restart`, { params }));
    else await answer(api.POST(`${base}/repair`, { params, body: {} }));
    done();
  };
  return (
    <ActionDialog
      title={`${verb.slice(0, 1).toUpperCase()}${verb.slice(1)} ${instance.name}?`}
      confirm={confirm}
      danger={verb === "stop"}
      command={`mooring ${command} ${instance.name}${verb === "stop" ? " --wait" : ""}`}
      close={close}
      act={act}
    >
      <p>{text(count === 1 ? "1 member is" : `${count} members are`)}</p>
    </ActionDialog>
  );
}
