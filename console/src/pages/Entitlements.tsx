/** Which apps a project may launch, and which actions their operators may do: the admin who grants agrees to each. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer, api, type Schemas } from "../api/client";
import { catalog } from "../api/queries/catalog";
import { type Entitlement, entitlements } from "../api/queries/policy";
import { useMeaning } from "../api/queries/reference";
import { type Column, DataTable } from "../parts/DataTable";
import { ActionDialog } from "../parts/Dialog";
import { CheckField, ReasonField, SelectField, TextField } from "../parts/Fields";
import { FilterBar } from "../parts/Filters";
import { ProjectPicker } from "../parts/ProjectPicker";
import { useLack } from "../parts/place";
import { Status } from "../parts/Status";
import { useProject } from "../parts/session";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, Empty, PageHead } from "../parts/ui";

type Project = Schemas["ProjectView"];

export function Entitlements() {
  useTitle("Entitlements");
  const search = useSearch({ from: "/shell/entitlements" });
  const navigate = useNavigate({ from: "/entitlements" });
  const { project, projects, isLoaded } = useProject(search.project);
  const lack = useLack(project && { scope: "project", id: project.id })("entitlement.update");
  const [isOpen, setOpen] = useState(false);
  const [agreed, setAgreed] = useState<Entitlement | null>(null);
  const [switched, setSwitched] = useState<Entitlement | null>(null);
  const page = useQuery(entitlements(project?.id, search.cursor));
  return (
    <>
      <PageHead title="Entitlements" sub="Which apps a project may launch, and what their operators may do in it.">
        <Button look="primary" onClick={() => setOpen(true)} disabledReason={lack}>
          Entitle to an app
        </Button>
      </PageHead>
      <FilterBar isFiltered={false} clear={() => undefined}>
        <ProjectPicker
          projects={projects}
          value={project?.id}
          onChange={(id) => void navigate({ search: { project: id } })}
        />
      </FilterBar>
      {isLoaded && !project ? (
        <Empty title="There is no project yet" command="mooring projects create --slug research" />
      ) : (
        <DataTable
          label="Entitlements"
          columns={columns({ lack, agree: setAgreed, change: setSwitched })}
          query={page}
          rowKey={(each) => each.id}
          pages={{
            cursor: search.cursor,
            go: (cursor) => void navigate({ search: (before) => ({ ...before, cursor }) }),
          }}
          empty={
            <Empty title="This project is entitled to no app" command="mooring entitlements create --app hello">
              A project can launch an app when it is entitled to it.
            </Empty>
          }
        />
      )}
      {isOpen && project && <GrantDialog project={project} close={() => setOpen(false)} />}
      {agreed && project && <AgreeDialog project={project} entitlement={agreed} close={() => setAgreed(null)} />}
      {switched && project && <SwitchDialog project={project} entitlement={switched} close={() => setSwitched(null)} />}
    </>
  );
}

interface RowActions {
  lack: string | undefined;
  agree: (entitlement: Entitlement) => void;
  change: (entitlement: Entitlement) => void;
}

function columns({ lack, agree, change }: RowActions): Column<Entitlement>[] {
  return [
    { head: "App", narrow: "line", cell: (each) => <span className="font-medium">{each.app_slug}</span> },
    { head: "State", cell: (each) => <Status kind="entitlement" value={each.enabled ? "active" : "disabled"} /> },
    { head: "Versions", cell: (each) => <span className="text-muted">{each.versions ?? "all"}</span> },
    {
      head: "Operated by",
      cell: (each) => <span className="text-muted">{each.operated_by.replaceAll("_", " ")}</span>,
    },
    {
      head: "Agreed actions",
      narrow: "line",
      cell: (each) => (
        <>
          <span className="font-mono text-xs break-words text-muted">{each.agreed_actions.join(", ") || "none"}</span>
          {each.missing_actions.length > 0 && (
            <p className="text-xs text-warn">
              nobody agreed to {each.missing_actions.join(", ")}, which the newest version requires
            </p>
          )}
        </>
      ),
    },
    {
      head: "Changed",
      narrow: "hidden",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.updated_at} />
        </span>
      ),
    },
    {
      head: "Actions",
      narrow: "line",
      cell: (each) => (
        <span className="flex gap-1">
          <Button onClick={() => agree(each)} disabledReason={lack}>
            Change
          </Button>
          <Button look={each.enabled ? "danger" : "plain"} onClick={() => change(each)} disabledReason={lack}>
            {each.enabled ? "Disable" : "Enable"}
          </Button>
        </span>
      ),
    },
  ];
}

interface DialogProps {
  project: Project;
  close: () => void;
}

function useRefresh() {
  const queries = useQueryClient();
  return async () => {
    await queries.invalidateQueries({ queryKey: ["entitlements"] });
    await queries.invalidateQueries({ queryKey: ["catalog"] });
  };
}

function GrantDialog({ project, close }: DialogProps) {
  const refresh = useRefresh();
  const known = useQuery(catalog(project.id)).data?.items ?? [];
  const [app, setApp] = useState("");
  const [versions, setVersions] = useState("");
  const [reason, setReason] = useState("");
  const slug = known.find((each) => each.app_id === app)?.slug ?? "APP";
  return (
    <ActionDialog
      title={`Entitle ${project.slug} to an app`}
      confirm="Entitle it"
      command={`mooring entitlements create --project ${project.slug} --app ${slug}${versions ? ` --versions '${versions}'` : ""} --reason '${reason}'`}
      close={close}
      act={async (key) => {
        await answer(
          api.POST("/api/v1/projects/{project_id}/entitlements", {
            params: { path: { project_id: project.id }, header: { "Idempotency-Key": key } },
            body: { app_id: app, versions: versions || null, reason },
          }),
        );
        await refresh();
      }}
    >
      <SelectField
        label="App"
        value={app}
        onChange={setApp}
        required
        empty="Choose…"
        words={known.map((each) => ({ value: each.app_id, label: each.display_name }))}
      />
      <TextField
        label="Versions"
        value={versions}
        onChange={setVersions}
        placeholder=">=1.2.0 <2.0.0"
        help="Leave it empty for every version."
      />
      <p className="text-muted">
        The list shows then which actions the operator of the app requires; agree to them with Change.
      </p>
      <ReasonField value={reason} onChange={setReason} />
    </ActionDialog>
  );
}

function AgreeDialog({ project, entitlement, close }: DialogProps & { entitlement: Entitlement }) {
  const refresh = useRefresh();
  const meaning = useMeaning();
  const keys = [...new Set([...entitlement.required_actions, ...entitlement.agreed_actions])].sort();
  const [agreed, setAgreed] = useState(entitlement.agreed_actions);
  const [versions, setVersions] = useState(entitlement.versions ?? "");
  const [reason, setReason] = useState("");
  const flags = agreed.map((each) => ` --agreed-action ${each}`).join("");
  return (
    <ActionDialog
      title={`What ${entitlement.app_slug} may do in ${project.slug}`}
      confirm="Agree to these"
      command={`mooring entitlements update --project ${project.slug} ${entitlement.id} --enabled${flags} --reason '${reason}'`}
      close={close}
      act={async (key) => {
        await answer(
          api.PUT("/api/v1/projects/{project_id}/entitlements/{entitlement_id}", {
            params: {
              path: { project_id: project.id, entitlement_id: entitlement.id },
              header: { "Idempotency-Key": key },
            },
            body: {
              enabled: entitlement.enabled,
              versions: versions || null,
              rules: entitlement.rules,
              agreed_actions: agreed,
              reason,
              revision: entitlement.revision,
            },
          }),
        );
        await refresh();
      }}
    >
      <fieldset className="space-y-2">
        <legend className="mb-1 font-medium">Its operator account may</legend>
        {keys.length === 0 && <p className="text-muted">Its newest version requires no action.</p>}
        {keys.map((each) => (
          <CheckField
            key={each}
            checked={agreed.includes(each)}
            onChange={(checked) => setAgreed(checked ? [...agreed, each] : agreed.filter((other) => other !== each))}
            label={
              <>
                <span className="font-mono text-xs">{each}</span>{" "}
                <span className="text-muted">{meaning("action", each)}</span>
                {!entitlement.required_actions.includes(each) && (
                  <span className="text-xs text-muted"> (not required any more)</span>
                )}
              </>
            }
          />
        ))}
      </fieldset>
      <TextField label="Versions" value={versions} onChange={setVersions} help="Leave it empty for every version." />
      <ReasonField value={reason} onChange={setReason} />
    </ActionDialog>
  );
}

function SwitchDialog({ project, entitlement, close }: DialogProps & { entitlement: Entitlement }) {
  const refresh = useRefresh();
  const [reason, setReason] = useState("");
  const verb = entitlement.enabled ? "disable" : "enable";
  const word = entitlement.enabled ? "Disable" : "Enable";
  return (
    <ActionDialog
      title={`${word} ${entitlement.app_slug} in ${project.slug}?`}
      confirm={word}
      danger={entitlement.enabled}
      command={`mooring entitlements ${verb} --project ${project.slug} ${entitlement.id} --reason '${reason}'`}
      close={close}
      act={async (key) => {
        const params = {
          path: { project_id: project.id, entitlement_id: entitlement.id },
          header: { "Idempotency-Key": key },
        };
        await answer(
          api.POST(`/api/v1/projects/{project_id}/entitlements/{entitlement_id}/${verb}`, {
            params,
            body: { reason },
          }),
        );
        await refresh();
      }}
    >
      <p>
        {entitlement.enabled
          ? "New launches are refused. Running instances continue, and the terms stay."
          : "The project can launch it again, on the terms as they are."}
      </p>
      <ReasonField value={reason} onChange={setReason} />
    </ActionDialog>
  );
}
