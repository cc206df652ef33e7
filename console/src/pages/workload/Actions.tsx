/** What this app can do, by its manifest: tables that it keeps current, and forms. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import type { Instance } from "../../api/client";
import { catalogVersion } from "../../api/queries/catalog";
import { whoAmI } from "../../api/queries/identity";
import { Button, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { ActionRun } from "./ActionRun";
import { ActionTable } from "./ActionTable";
import { type AppAction, actionsOf, lacking, type Row, titleOf } from "./actions";

export function Actions({ instance }: { instance: Instance }) {
  const detail = useQuery(catalogVersion(instance.project_id, instance.app_id, instance.version_id));
  const me = useQuery(whoAmI).data;
  const queries = useQueryClient();
  const [run, setRun] = useState<{ action: AppAction; input: Row } | null>(null);
  if (detail.error) return <ProblemBox error={detail.error} retry={() => detail.refetch()} />;
  if (!detail.data) return <Skeleton rows={6} />;
  const actions = actionsOf(detail.data);
  const reason = (action: AppAction) => away(instance) ?? lacking(me, instance.project_id, action);
  const tables = actions.filter((each) => each.view);
  const shown = new Set(tables.flatMap((each) => [each.name, ...(each.view?.create ?? [])]));
  const others = actions.filter((each) => !shown.has(each.name));
  if (actions.length === 0)
    return (
      <Panel title="Actions">
        <Empty title="This app declares no actions">
          What can be done with every workload is on the overview and with its members.
        </Empty>
      </Panel>
    );
  return (
    <div className="space-y-5">
      {tables.map((each) => (
        <div key={each.name}>
          <ActionTable
            instance={instance}
            action={each}
            others={actions}
            reason={reason}
            run={(action, input) => setRun({ action, input })}
          />
        </div>
      ))}
      {others.length > 0 && (
        <Panel title={tables.length > 0 ? "More actions" : "Actions"}>
          <ul className="divide-y divide-line">
            {others.map((each) => (
              <li key={each.name} className="flex flex-wrap items-center gap-3 px-4 py-3">
                <span className="min-w-0 flex-1 basis-64">
                  <span className="font-medium">{titleOf(each)}</span>
                  {each.read_only && <span className="ml-2 text-xs text-muted">only reads</span>}
                  <span className="block text-xs break-words text-muted">{each.description}</span>
                </span>
                <Button
                  look={each.destructive ? "danger" : "plain"}
                  onClick={() => setRun({ action: each, input: {} })}
                  disabledReason={reason(each)}
                >
                  {titleOf(each)}…
                </Button>
              </li>
            ))}
          </ul>
        </Panel>
      )}
      {run && (
        <ActionRun
          instance={instance}
          action={run.action}
          given={run.input}
          close={() => setRun(null)}
          done={() => void queries.invalidateQueries({ queryKey: ["action", instance.id] })}
        />
      )}
    </div>
  );
}

/** An action needs an app that runs and an adapter that answers for it. */
function away(instance: Instance): string | undefined {
  if (instance.status !== "running") return `not while it is ${instance.status}`;
  return instance.claim.held ? undefined : "its adapter does not answer now";
}
