/** What is being done or was done: how far, who asked, what it waits for. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Instance, type Operation } from "../../api/client";
import { operations } from "../../api/queries/runtime";
import { ActionDialog } from "../../parts/Dialog";
import { Status } from "../../parts/Status";
import { Ago, duration } from "../../parts/time";
import { Button, CopyButton, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

export function Operations({ instance, done }: { instance: Instance; done: () => void }) {
  const listed = useQuery(operations(instance));
  const [cancelled, setCancelled] = useState<Operation | null>(null);
  return (
    <Panel title="Operations">
      {listed.error ? (
        <ProblemBox error={listed.error} />
      ) : !listed.data ? (
        <Skeleton />
      ) : listed.data.items.length === 0 ? (
        <Empty title="Nothing was done yet" command={`mooring instances operations list ${instance.name}`} />
      ) : (
        <ul className="divide-y divide-line">
          {listed.data.items.map((each) => (
            <OperationItem key={each.id} operation={each} cancel={() => setCancelled(each)} />
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

function OperationItem({ operation, cancel }: { operation: Operation; cancel: () => void }) {
  const finished = operation.steps.filter((each) => each.ended_at).length;
  const took =
    operation.finished_at &&
    duration(new Date(operation.finished_at).getTime() - new Date(operation.created_at).getTime());
  return (
    <li className="space-y-2 px-4 py-3">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <span className="font-semibold capitalize">{operation.kind}</span>
        <Status kind="operation" value={operation.status} />
        <span className="text-xs text-muted">
          <Ago at={operation.created_at} />
          {took && `, took ${took}`}
          {operation.steps.length > 0 && `, ${finished} of ${operation.steps.length} steps`}
        </span>
        <span className="flex-1" />
        {operation.allowed_verbs.includes("cancel") && <Button onClick={cancel}>Cancel</Button>}
      </div>
      {(operation.blocker ?? operation.failure_detail) && (
        <p className="rounded-md bg-warn-soft p-2 text-xs text-warn">{operation.blocker ?? operation.failure_detail}</p>
      )}
      {operation.steps.length > 0 && (
        <details>
          <summary className="text-xs text-muted">Steps</summary>
          <ol className="mt-2 space-y-1">
            {operation.steps.map((each) => (
              <li key={each.name} className="flex flex-wrap items-center gap-2">
                <Status kind="step" value={each.status} />
                <span className="font-mono text-xs break-all">{each.name}</span>
                {each.started_at && each.ended_at && (
                  <span className="text-xs text-muted">
                    {duration(new Date(each.ended_at).getTime() - new Date(each.started_at).getTime())}
                  </span>
                )}
              </li>
            ))}
          </ol>
        </details>
      )}
      <p className="flex items-center font-mono text-xs text-muted">
        <span className="truncate">{operation.correlation_id}</span>
        <CopyButton text={operation.correlation_id} label="Copy the correlation id" />
      </p>
    </li>
  );
}
