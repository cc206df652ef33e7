/** The version that a workload runs, what is offered instead, and the way back. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Instance, type Schemas } from "../../api/client";
import { catalogVersions } from "../../api/queries/catalog";
import { members as membersQuery } from "../../api/queries/runtime";
import { ActionDialog } from "../../parts/Dialog";
import { Status } from "../../parts/Status";
import { Ago } from "../../parts/time";
import { Button, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { missing } from "./verbs";

type Version = Schemas["CatalogVersionView"];

interface VersionsProps {
  instance: Instance;
  detail: Schemas["CatalogVersionDetail"];
  done: () => void;
}

export function Versions({ instance, detail, done }: VersionsProps) {
  const listed = useQuery(catalogVersions(instance.project_id, instance.app_id));
  const [target, setTarget] = useState<Version | "back" | null>(null);
  const own = missing(instance, "upgrade", "instance.update");
  const offered = listed.data?.items.filter((each) => each.offered && each.id !== instance.version_id) ?? [];
  return (
    <Panel
      title="Versions"
      aside={
        instance.previous_pin && (
          <Button onClick={() => setTarget("back")} disabledReason={missing(instance, "rollback", "instance.update")}>
            Roll back to {instance.previous_pin.version}…
          </Button>
        )
      }
    >
      <HalfDone instance={instance} />
      {listed.error ? (
        <ProblemBox error={listed.error} retry={() => listed.refetch()} />
      ) : !listed.data ? (
        <Skeleton />
      ) : (
        <ul className="divide-y divide-line">
          {listed.data.items.map((each) => (
            <li key={each.id} className="flex flex-wrap items-start gap-3 px-4 py-3">
              <div className="min-w-0 flex-1 basis-64">
                <p className="flex flex-wrap items-center gap-2">
                  <span className="font-semibold">{each.version}</span>
                  <Status kind="promotion" value={each.status} />
                  {each.id === instance.version_id && <span className="text-xs text-accent">runs now</span>}
                  {each.id === offered[0]?.id && each.created_at > detail.created_at && (
                    <span className="rounded bg-accent-soft px-1.5 text-xs text-accent">newer than what runs</span>
                  )}
                  <span className="text-xs text-muted">
                    <Ago at={each.created_at} />
                  </span>
                </p>
                <p className="mt-1 break-words text-muted">{each.release_notes}</p>
                {(each.reason ?? each.deprecation_reason) && (
                  <p className="text-xs break-words text-warn">
                    {each.reason ?? each.deprecation_reason}
                    {each.superseded_by && ` Its successor is ${each.superseded_by}.`}
                  </p>
                )}
              </div>
              {each.id !== instance.version_id && (
                <Button
                  onClick={() => setTarget(each)}
                  disabledReason={own ?? (each.offered ? undefined : (each.reason ?? "it is not offered"))}
                >
                  Change to {each.version}…
                </Button>
              )}
            </li>
          ))}
        </ul>
      )}
      {target && <VersionDialog instance={instance} target={target} close={() => setTarget(null)} done={done} />}
    </Panel>
  );
}

/** While an upgrade is under way, or after one that failed: which member runs which version. */
function HalfDone({ instance }: { instance: Instance }) {
  const listed = useQuery(membersQuery(instance)).data?.items.filter((each) => each.status !== "removed") ?? [];
  const versions = [...new Set(listed.map((each) => each.version))];
  if (versions.length < 2) return null;
  return (
    <div className="border-b border-line bg-warn-soft px-4 py-3">
      <p className="font-medium">
        The members run {versions.length} versions; the pin is {instance.version}.
      </p>
      <ul className="mt-1 text-xs">
        {versions.map((version) => (
          <li key={version} className="break-words">
            <span className="font-medium">{version}</span>:{" "}
            {listed
              .filter((each) => each.version === version)
              .map((each) => each.name)
              .join(", ")}
          </li>
        ))}
      </ul>
    </div>
  );
}

interface VersionDialogProps {
  instance: Instance;
  target: Version | "back";
  close: () => void;
  done: () => void;
}

function VersionDialog({ instance, target, close, done }: VersionDialogProps) {
  const isBack = target === "back";
  const to = isBack ? (instance.previous_pin?.version ?? "") : target.version;
  const count = instance.members_summary.reduce((sum, each) => sum + each.current, 0);
  const params = { path: { project_id: instance.project_id, instance_id: instance.id } };
  const base = "/api/v1/projects/{project_id}/app-instances/{instance_id}" as const;
  return (
    <ActionDialog
      title={isBack ? `Roll ${instance.name} back to ${to}?` : `Change ${instance.name} to ${to}?`}
      confirm={isBack ? "Roll back" : "Change the version"}
      command={
        isBack
          ? `mooring instances rollback ${instance.name} --wait`
          : `mooring instances upgrade ${instance.name} --version ${to} --wait`
      }
      close={close}
      act={async (key) => {
        const own = { params: { ...params, header: { "Idempotency-Key": key } } };
        if (isBack) await answer(api.POST(`${base}/rollback`, own));
        else await answer(api.POST(`${base}/upgrade`, { ...own, body: { version: to, channel: null } }));
        done();
      }}
    >
      <p>
        {instance.version} → <span className="font-semibold">{to}</span>, for {count}{" "}
        {count === 1 ? "member" : "members"}. Its adapter changes them in the order that the app declares.
      </p>
      <p className="text-xs text-muted">
        The pin moves when all of it has succeeded. If it fails, the pin stays, each member shows the version that it
        runs, and you can change again or roll back.
      </p>
      {!isBack && target.release_notes && (
        <p className="rounded-md bg-sunken p-3 break-words">{target.release_notes}</p>
      )}
    </ActionDialog>
  );
}
