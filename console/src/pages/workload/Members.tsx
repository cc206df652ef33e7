/** The members of a workload, where they run, and what can be done with each. */
import { useQuery } from "@tanstack/react-query";
import Plus from "lucide-react/icons/plus";
import SquareTerminal from "lucide-react/icons/square-terminal";
import { useState } from "react";
import { answer, api, type Instance, type Member } from "../../api/client";
import { members as membersQuery } from "../../api/queries/runtime";
import { ActionDialog } from "../../parts/Dialog";
import { Labelled } from "../../parts/SchemaForm";
import { Status } from "../../parts/Status";
import { Button, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { missing } from "./verbs";

type Open = { verb: "add" } | { verb: "drain" | "remove" | "resume"; member: Member } | null;

export function Members({ instance, done }: { instance: Instance; done: () => void }) {
  const listed = useQuery(membersQuery(instance));
  const [open, setOpen] = useState<Open>(null);
  const [gone, setGone] = useState(false);
  const all = listed.data?.items ?? [];
  const shown = all.filter((each) => gone || instance.status === "stopped" || each.status !== "removed");
  const removed = all.filter((each) => each.status === "removed").length;
  return (
    <Panel
      title="Members"
      aside={
        <div className="flex items-center gap-3">
          {removed > 0 && instance.status !== "stopped" && (
            <label className="flex items-center gap-2 text-xs">
              <input
                type="checkbox"
                className="size-4 accent-accent"
                checked={gone}
                onChange={(event) => setGone(event.target.checked)}
              />
              Show {removed} removed
            </label>
          )}
          <Button onClick={() => setOpen({ verb: "add" })} disabledReason={missing(instance, "add", "member.add")}>
            <Plus size={14} aria-hidden /> Add
          </Button>
        </div>
      }
    >
      {listed.error ? (
        <ProblemBox error={listed.error} />
      ) : !listed.data ? (
        <Skeleton />
      ) : shown.length === 0 ? (
        <Empty title="It has no members" command={`mooring instances members list ${instance.name}`} />
      ) : (
        <MemberTable instance={instance} members={shown} open={setOpen} />
      )}
      {open?.verb === "add" && <AddDialog instance={instance} close={() => setOpen(null)} done={done} />}
      {open !== null && open.verb !== "add" && (
        <MemberDialog
          instance={instance}
          member={open.member}
          verb={open.verb}
          close={() => setOpen(null)}
          done={done}
        />
      )}
    </Panel>
  );
}

/** A shell beside the member's programs, in a window of its own. */
function TerminalLink({ instance, member }: { instance: Instance; member: Member }) {
  const reason = missing(member, "exec", "instance.exec");
  const icon = <SquareTerminal size={14} aria-hidden />;
  if (reason) {
    return <Button disabledReason={reason}>{icon} Terminal</Button>;
  }
  return (
    <a
      className="inline-flex min-h-8 items-center justify-center gap-1.5 rounded-md border border-line bg-panel px-3 py-1 text-sm font-medium whitespace-nowrap text-ink hover:bg-sunken"
      href={`${import.meta.env.BASE_URL}terminal/${instance.project_id}/${instance.id}?member=${member.id}`}
      target="_blank"
      rel="noopener"
      title={`A shell of ${member.name}, in a new tab`}
    >
      {icon} Terminal
    </a>
  );
}

interface MemberTableProps {
  instance: Instance;
  members: Member[];
  open: (what: Open) => void;
}

function MemberTable({ instance, members, open }: MemberTableProps) {
  const head = "px-4 py-2 text-left text-xs font-medium text-muted";
  const cell = "md:px-4 md:py-2.5";
  return (
    <table className="w-full">
      <caption className="sr-only">Members</caption>
      <thead className="border-b border-line max-md:sr-only">
        <tr>
          {["Member", "State", "Health", "Node", "Actions"].map((each) => (
            <th key={each} scope="col" className={head}>
              {each}
            </th>
          ))}
        </tr>
      </thead>
      <tbody className="divide-y divide-line">
        {members.map((each) => (
          <tr
            key={each.id}
            className="max-md:flex max-md:flex-wrap max-md:items-center max-md:gap-x-3 max-md:gap-y-2 max-md:px-4 max-md:py-3"
          >
            <td className={`${cell} max-md:w-full`}>
              <span className="font-medium">{each.name}</span>
              <span className="block text-xs text-muted">{each.component_key}</span>
              {(each.blocker ?? each.failure_detail) && (
                <span className="block max-w-sm text-xs text-warn">{each.blocker ?? each.failure_detail}</span>
              )}
            </td>
            <td className={cell}>
              <Status kind="member" value={each.status} />
            </td>
            <td className={cell}>{each.status !== "removed" && <Status kind="health" value={each.health} />}</td>
            <td className={`${cell} font-mono text-xs text-muted`} title={each.node_id ?? undefined}>
              {each.node_id ? `…${each.node_id.slice(-8)}` : "–"}
              {each.node_reachable === false && <span className="block text-warn">not reachable</span>}
            </td>
            <td className={cell}>
              {each.status !== "removed" && (
                <div className="flex flex-wrap gap-2">
                  <TerminalLink instance={instance} member={each} />
                  {each.allowed_verbs.includes("resume") ? (
                    <Button
                      onClick={() => open({ verb: "resume", member: each })}
                      disabledReason={missing(each, "resume", "member.drain")}
                    >
                      Resume
                    </Button>
                  ) : (
                    <Button
                      onClick={() => open({ verb: "drain", member: each })}
                      disabledReason={missing(each, "drain", "member.drain")}
                    >
                      Drain
                    </Button>
                  )}
                  <Button
                    look="danger"
                    onClick={() => open({ verb: "remove", member: each })}
                    disabledReason={missing(each, "remove", "member.remove")}
                  >
                    Remove
                  </Button>
                </div>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface DialogProps {
  instance: Instance;
  close: () => void;
  done: () => void;
}

function AddDialog({ instance, close, done }: DialogProps) {
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
      <p className="text-xs text-muted">Each gets the capacity that the launch asked for.</p>
    </ActionDialog>
  );
}

const TEXT = {
  drain: "It finishes its work and accepts no more. It keeps its machine until it is removed.",
  remove: "Its work may finish, then it is torn down with everything that it has stored. It leaves a receipt.",
  resume: "It accepts work again. A hold of its adapter stays until the adapter lifts it.",
};

function MemberDialog({
  instance,
  member,
  verb,
  close,
  done,
}: DialogProps & { member: Member; verb: keyof typeof TEXT }) {
  const path = { project_id: instance.project_id, instance_id: instance.id, member_id: member.id };
  const base = "/api/v1/projects/{project_id}/app-instances/{instance_id}/members/{member_id}" as const;
  const act = async (key: string) => {
    const params = { path, header: { "Idempotency-Key": key } };
    if (verb === "drain") await answer(api.POST(`${base}/drain`, { params, body: {} }));
    else if (verb === "remove") await answer(api.POST(`${base}/remove`, { params, body: {} }));
    else await answer(api.POST(`${base}/resume`, { params }));
    done();
  };
  const label = verb.slice(0, 1).toUpperCase() + verb.slice(1);
  return (
    <ActionDialog
      title={`${label} ${member.name}?`}
      confirm={label}
      danger={verb === "remove"}
      command={`mooring instances members ${verb} ${instance.name} ${member.name}`}
      close={close}
      act={act}
    >
      <p>{TEXT[verb]}</p>
    </ActionDialog>
  );
}
