/** What is being done or was done: how far, who asked, what it waits for. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { answer, api, type Instance, type Operation } from "../../api/client";
import { members as membersQuery, operations, whyOperation } from "../../api/queries/runtime";
import { ActionDialog } from "../../parts/Dialog";
import { Status } from "../../parts/Status";
import { Ago, duration, Elapsed } from "../../parts/time";
import { Button, CopyButton, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

export function Operations({ instance, done }: { instance: Instance; done: () => void }) {
  const listed = useQuery(operations(instance));
  const members = useQuery(membersQuery(instance)).data?.items ?? [];
  const names = new Map(members.map((each) => [each.id, each.name]));
  const [cancelled, setCancelled] = useState<Operation | null>(null);
  return (
    <Panel title="Operations">
      {listed.error ? (
        <ProblemBox error={listed.error} retry={() => listed.refetch()} />
      ) : !listed.data ? (
        <Skeleton />
      ) : listed.data.items.length === 0 ? (
        <Empty title="Nothing was done yet" command={`mooring instances operations list ${instance.name}`} />
      ) : (
        <ul className="divide-y divide-line">
          {listed.data.items.map((each) => (
            <OperationItem
              key={each.id}
              operation={each}
              instance={instance}
              names={names}
              cancel={() => setCancelled(each)}
            />
          ))}
        </ul>
      )}
      {cancelled && (
        <ActionDialog
          title={`Cancel ${cancelled.kind}?`}
          confirm="Cancel the operation"
          danger
          command={`mooring instances operations cancel ${instance.name} ${cancelled.id}`}
          close={() => setCancelled(null)}
          act={async (key) => {
            await answer(
              api.POST("/api/v1/projects/{project_id}/app-instances/{instance_id}/operations/{operation_id}/cancel", {
                params: {
                  path: { project_id: instance.project_id, instance_id: instance.id, operation_id: cancelled.id },
                  header: { "Idempotency-Key": key },
                },
                body: {},
              }),
            );
            done();
          }}
        >
          <p>It is asked to end early. Past its point of no return it may finish all the same.</p>
        </ActionDialog>
      )}
    </Panel>
  );
}

interface OperationItemProps {
  operation: Operation;
  instance: Instance;
  /** The names of the members by id. */
  names: Map<string, string>;
  cancel: () => void;
}

function OperationItem({ operation, instance, names, cancel }: OperationItemProps) {
  const { steps, status } = operation;
  const finished = steps.filter((each) => each.ended_at).length;
  const isOpen = !operation.finished_at;
  const took =
    operation.finished_at &&
    duration(new Date(operation.finished_at).getTime() - new Date(operation.created_at).getTime());
  const who = operation.member_ids.map((id) => names.get(id) ?? id);
  return (
    <li className="space-y-2 px-4 py-3">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <span className="font-semibold capitalize">{operation.kind}</span>
        <Status kind="operation" value={status} />
        <span className="text-xs text-muted">
          <Ago at={operation.created_at} />
          {took ? (
            `, took ${took}`
          ) : (
            <>
              , for <Elapsed since={operation.created_at} />; it fails if it is not done{" "}
              <Ago at={operation.deadline_at} />
            </>
          )}
          {operation.target_version && `, to version ${operation.target_version}`}
        </span>
        <span className="flex-1" />
        {isOpen && (
          <Button
            onClick={cancel}
            disabledReason={operation.allowed_verbs.includes("cancel") ? undefined : `not while it is ${status}`}
          >
            Cancel
          </Button>
        )}
      </div>
      {who.length > 0 && <p className="text-xs break-words text-muted">For {who.join(", ")}</p>}
      {steps.length > 0 && (
        <p className="flex items-center gap-3 text-xs text-muted">
          {isOpen && (
            <progress
              className="h-2 w-full max-w-xs accent-accent"
              max={steps.length}
              value={finished}
              aria-label={`Steps of ${operation.kind}`}
            />
          )}
          {finished} of {steps.length} steps
          {operation.phase === "platform" && isOpen && "; the platform tears down"}
        </p>
      )}
      {status === "blocked" && <Blocked operation={operation} instance={instance} />}
      {operation.cancel_reason && (
        <p className="text-xs break-words text-muted">Cancelled: {operation.cancel_reason}</p>
      )}
      {operation.failure_detail && (
        <p className="rounded-md bg-bad-soft p-2 text-xs break-words">
          <code className="font-mono font-semibold text-bad">{operation.failure_code}</code> {operation.failure_detail}
        </p>
      )}
      {operation.last_lines.length > 0 && (
        <pre className="overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
          {operation.last_lines.join("\n")}
        </pre>
      )}
      {steps.length > 0 && <Steps operation={operation} instance={instance} names={names} />}
      {operation.evidence && Object.keys(operation.evidence).length > 0 && (
        <details>
          <summary className="text-xs text-muted">Evidence</summary>
          <pre className="mt-2 overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
            {JSON.stringify(operation.evidence, null, 2)}
          </pre>
        </details>
      )}
      <p className="flex items-center font-mono text-xs text-muted">
        <span className="truncate">{operation.correlation_id}</span>
        <CopyButton text={operation.correlation_id} label="Copy the correlation id" />
      </p>
    </li>
  );
}

/** What it waits for, and what ends the waiting: the server's own explanation. */
function Blocked({ operation, instance }: { operation: Operation; instance: Instance }) {
  const explained = useQuery(whyOperation(instance, operation.id));
  return (
    <div className="space-y-1 rounded-md bg-warn-soft p-2 text-xs break-words text-warn">
      <p>
        {operation.blocker_code && <code className="font-mono font-semibold">{operation.blocker_code}</code>}{" "}
        {operation.blocker}
      </p>
      {explained.data && (
        <p>
          <span className="font-semibold">It goes on when this is done:</span> {explained.data.next.what}
          {explained.data.next.who !== "nobody" && ` (${explained.data.next.who.replaceAll("_", " ")})`}
        </p>
      )}
    </div>
  );
}

const MEMBER = /\/?(mem_[0-9a-z]{26})/;

function Steps({
  operation,
  instance,
  names,
}: {
  operation: Operation;
  instance: Instance;
  names: Map<string, string>;
}) {
  return (
    <details open={!operation.finished_at}>
      <summary className="text-xs text-muted">Steps</summary>
      <ol className="mt-2 space-y-1">
        {operation.steps.map((each) => {
          const member = MEMBER.exec(each.name)?.[1];
          return (
            <li key={each.name} className="flex flex-wrap items-center gap-x-2 gap-y-0.5">
              <Status kind="step" value={each.status} />
              <span className="font-mono text-xs break-all">{each.name.replace(MEMBER, "")}</span>
              {member && <span className="text-xs">{names.get(member) ?? member}</span>}
              {each.started_at && each.ended_at && (
                <span className="text-xs text-muted">
                  {duration(new Date(each.ended_at).getTime() - new Date(each.started_at).getTime())}
                  {(each.attempts ?? 0) > 1 && `, ${each.attempts} attempts`}
                </span>
              )}
              {each.detail && <span className="text-xs break-words text-muted">{each.detail}</span>}
              {member && names.has(member) && (
                <Link
                  to="/workloads/$id"
                  params={{ id: instance.id }}
                  search={{ tab: "logs", member }}
                  className="link text-xs"
                  aria-label={`Log of ${names.get(member)}`}
                >
                  Log
                </Link>
              )}
            </li>
          );
        })}
      </ol>
    </details>
  );
}
