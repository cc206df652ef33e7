/** What can be done with members. Each dialog says what happens to whom, and what is lost. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Instance, type Member } from "../../api/client";
import { fit } from "../../api/queries/fleet";
import { ActionDialog } from "../../parts/Dialog";
import { Labelled } from "../../parts/SchemaForm";

export type MemberVerb = "drain" | "remove" | "resume" | "replace";

export const MEMBER_ACTION: Record<MemberVerb, string> = {
  drain: "member.drain",
  remove: "member.remove",
  resume: "member.drain",
  replace: "member.replace",
};

interface DialogProps {
  instance: Instance;
  close: () => void;
  done: () => void;
}

export function AddDialog({ instance, close, done }: DialogProps) {
  const components = instance.members_summary.map((each) => each.component_key);
  const [component, setComponent] = useState(components[0] ?? "");
  const [count, setCount] = useState(1);
  return (
    <ActionDialog
      title={`Add members to ${instance.name}`}
      confirm="Add"
      command={`mooring instances members add ${instance.name} --component ${component} --count ${count}`}
      close={close}
      act={async (key) => {
        await answer(
          api.POST("/api/v1/projects/{project_id}/app-instances/{instance_id}/members", {
            params: {
              path: { project_id: instance.project_id, instance_id: instance.id },
              header: { "Idempotency-Key": key },
            },
            body: { component, count },
          }),
        );
        done();
      }}
    >
      <div className="grid grid-cols-2 gap-3">
        <Labelled id="component" label="Component">
          <select id="component" className="field" value={component} onChange={(e) => setComponent(e.target.value)}>
            {components.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </Labelled>
        <Labelled id="count" label="How many">
          <input
            id="count"
            className="field"
            type="number"
            min={1}
            max={100}
            value={count}
            onChange={(event) => setCount(Math.max(1, Number(event.target.value)))}
          />
        </Labelled>
      </div>
      <Capacity instance={instance} count={count} />
    </ActionDialog>
  );
}

/** Whether the machines for them are free now: the server's own explanation. */
function Capacity({ instance, count }: { instance: Instance; count: number }) {
  const { sku, gpu_count: gpus } = instance.placement as { sku?: string; gpu_count?: number };
  const shape = instance.bound_capacity_shape;
  const found = useQuery(fit(instance.project_id, { sku, shape, gpu_count: gpus, count: Math.min(count, 64) }));
  return (
    <div className="space-y-1 text-xs text-muted" aria-live="polite">
      <p>Each gets the capacity that the launch asked for{sku && `: ${sku}, ${gpus ?? 1} GPU each`}.</p>
      {found.data && (
        <p className={found.data.fits ? "font-medium text-good" : "font-medium text-warn"}>
          {found.data.fits
            ? `${count === 1 ? "It fits" : `All ${count} fit`} now.`
            : `They would wait: ${found.data.because}${found.data.smallest_change ? `; what would help: ${found.data.smallest_change}` : ""}`}
        </p>
      )}
    </div>
  );
}

const TEXT: Record<MemberVerb, string> = {
  drain: "They finish their work and accept no more. They keep their machines until they are removed.",
  remove:
    "Their work may finish, then they are torn down with everything that they have stored. Each leaves a receipt.",
  resume: "They accept work again. A hold of the adapter stays until the adapter lifts it.",
  replace:
    "A new member joins first where there is room for it; then the old one is drained and torn down. What the old one has stored is lost.",
};

interface MemberDialogProps extends DialogProps {
  members: Member[];
  verb: MemberVerb;
}

/** One verb for one member or for several, one after another; the names say for whom. */
export function MemberDialog({ instance, members, verb, close, done }: MemberDialogProps) {
  const label = verb.slice(0, 1).toUpperCase() + verb.slice(1);
  const names = members.map((each) => each.name);
  const act = async (key: string) => {
    for (const each of members) await actOn(instance, each, verb, `${key}-${each.id.slice(-8)}`);
    done();
  };
  return (
    <ActionDialog
      title={members.length === 1 ? `${label} ${names[0]}?` : `${label} ${members.length} members?`}
      confirm={label}
      danger={verb === "remove" || verb === "replace"}
      command={names.map((each) => `mooring instances members ${verb} ${instance.name} ${each}`).join("\n")}
      close={close}
      act={act}
    >
      {members.length > 1 && (
        <ul className="max-h-40 list-disc overflow-auto rounded-md bg-sunken py-2 pr-3 pl-7">
          {names.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
      <p>{TEXT[verb]}</p>
      <Left instance={instance} members={members} verb={verb} />
    </ActionDialog>
  );
}

async function actOn(instance: Instance, member: Member, verb: MemberVerb, key: string): Promise<void> {
  const path = { project_id: instance.project_id, instance_id: instance.id, member_id: member.id };
  const params = { path, header: { "Idempotency-Key": key } };
  const base = "/api/v1/projects/{project_id}/app-instances/{instance_id}/members/{member_id}" as const;
  if (verb === "drain") await answer(api.POST(`${base}/drain`, { params, body: {} }));
  else if (verb === "remove") await answer(api.POST(`${base}/remove`, { params, body: {} }));
  else if (verb === "replace") await answer(api.POST(`${base}/replace`, { params, body: {} }));
  else await answer(api.POST(`${base}/resume`, { params }));
}

/** How many of each component are healthy afterwards. */
function Left({ instance, members, verb }: { instance: Instance; members: Member[]; verb: MemberVerb }) {
  if (verb !== "drain" && verb !== "remove") return null;
  return (
    <ul className="space-y-1 text-xs text-muted">
      {instance.members_summary.flatMap((each) => {
        const leaving = members.filter((member) => member.component_key === each.component_key);
        if (leaving.length === 0) return [];
        const healthy = leaving.filter((member) => member.health === "healthy" && member.status === "ready").length;
        return (
          <li key={each.component_key}>
            {each.component_key}: {each.healthy} healthy now, {Math.max(0, each.healthy - healthy)} that work afterwards
          </li>
        );
      })}
    </ul>
  );
}
