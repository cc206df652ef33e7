/** What a workload is set to and which version it runs: against the defaults, and against what it ran before. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Instance, type Schemas } from "../../api/client";
import { catalogVersion } from "../../api/queries/catalog";
import { ActionDialog } from "../../parts/Dialog";
import { type Schema, SchemaForm, type Config as Values } from "../../parts/SchemaForm";
import { Button, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { Versions } from "./Versions";
import { missing } from "./verbs";

type Detail = Schemas["CatalogVersionDetail"];

export function Config({ instance, done }: { instance: Instance; done: () => void }) {
  const { project_id: project, app_id: app } = instance;
  const detail = useQuery(catalogVersion(project, app, instance.version_id));
  const before = instance.previous_pin;
  const previous = useQuery({ ...catalogVersion(project, app, before?.version_id ?? ""), enabled: before !== null });
  const [open, setOpen] = useState(false);
  if (detail.error) return <ProblemBox error={detail.error} retry={() => detail.refetch()} />;
  if (!detail.data) return <Skeleton rows={6} />;
  const schema = (detail.data.config_schema ?? {}) as Schema;
  return (
    <div className="space-y-5">
      <Panel
        title="Configuration"
        aside={
          <Button onClick={() => setOpen(true)} disabledReason={missing(instance, "update", "instance.update")}>
            Change…
          </Button>
        }
      >
        <Settings instance={instance} schema={schema} previous={previous.data} />
      </Panel>
      <Versions instance={instance} detail={detail.data} done={done} />
      {open && <ChangeDialog instance={instance} schema={schema} close={() => setOpen(false)} done={done} />}
    </div>
  );
}

interface SettingsProps {
  instance: Instance;
  schema: Schema;
  previous: Detail | undefined;
}

function Settings({ instance, schema, previous }: SettingsProps) {
  const fields = schema.properties ?? {};
  const names = [...new Set([...Object.keys(fields), ...Object.keys(instance.config)])];
  const old = (previous?.config_schema as Schema | undefined)?.properties;
  if (names.length === 0) return <Empty title="This app has nothing to configure" />;
  return (
    <div className="overflow-x-auto">
      <table className="w-full">
        <caption className="sr-only">Configuration against its defaults</caption>
        <thead className="border-b border-line text-left text-xs text-muted">
          <tr>
            {[
              "Field",
              "Set to",
              `Default of ${instance.version}`,
              ...(old ? [`Default of ${previous?.version}`] : []),
            ].map((each) => (
              <th key={each} scope="col" className="px-4 py-2 font-medium">
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="divide-y divide-line">
          {names.map((name) => {
            const field = fields[name];
            const value = instance.config[name];
            const isChanged = value !== undefined && !same(value, field?.default);
            return (
              <tr key={name} className="align-top">
                <th scope="row" className="px-4 py-2 text-left font-normal">
                  {field?.title ?? name}
                  <span className="block font-mono text-xs text-muted">{name}</span>
                </th>
                <td className="px-4 py-2">
                  {field?.writeOnly ? (
                    <span className="text-muted">{value === undefined ? "not set" : "set, and not shown"}</span>
                  ) : value === undefined ? (
                    <span className="text-muted">the default</span>
                  ) : (
                    <Shown value={value} isChanged={isChanged} />
                  )}
                </td>
                <td className="px-4 py-2">
                  <Shown value={field?.default} />
                </td>
                {old && (
                  <td className="px-4 py-2">
                    {name in old ? (
                      <Shown value={old[name]?.default} isChanged={!same(old[name]?.default, field?.default)} />
                    ) : (
                      <span className="text-muted">it did not have this field</span>
                    )}
                  </td>
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

function Shown({ value, isChanged }: { value: unknown; isChanged?: boolean }) {
  if (value === undefined) return <span className="text-muted">none</span>;
  return (
    <span className="break-words">
      <code className="font-mono text-xs break-all">{typeof value === "string" ? value : JSON.stringify(value)}</code>
      {isChanged && <span className="ml-2 rounded bg-warn-soft px-1.5 text-xs text-warn">differs</span>}
    </span>
  );
}

interface ChangeDialogProps {
  instance: Instance;
  schema: Schema;
  close: () => void;
  done: () => void;
}

/** The form of the launch with what is set now; the dialog lists what would change. */
function ChangeDialog({ instance, schema, close, done }: ChangeDialogProps) {
  const fields = schema.properties ?? {};
  const [value, setValue] = useState<Values>(() =>
    Object.fromEntries(Object.entries(instance.config).filter(([name]) => !fields[name]?.writeOnly)),
  );
  const names = [...new Set([...Object.keys(value), ...Object.keys(instance.config)])];
  const changed = names.filter(
    (each) => !same(value[each], instance.config[each]) && !(fields[each]?.writeOnly && value[each] === undefined),
  );
  const config = Object.fromEntries(changed.map((each) => [each, value[each] ?? null]));
  const shown = Object.fromEntries(changed.map((each) => [each, fields[each]?.writeOnly ? "…" : config[each]]));
  return (
    <ActionDialog
      title={`Change the configuration of ${instance.name}`}
      confirm={changed.length === 1 ? "Change 1 field" : `Change ${changed.length} fields`}
      command={`mooring instances update ${instance.name} --config '${JSON.stringify(shown).replaceAll("'", `'\\''`)}' --wait`}
      close={close}
      act={async (key) => {
        if (changed.length === 0) return;
        await answer(
          api.PATCH("/api/v1/projects/{project_id}/app-instances/{instance_id}", {
            params: {
              path: { project_id: instance.project_id, instance_id: instance.id },
              header: { "Idempotency-Key": key },
            },
            body: { config: config as Record<string, never> },
          }),
        );
        done();
      }}
    >
      <div className="max-h-[50vh] overflow-auto px-0.5">
        <SchemaForm schema={schema} value={value} onChange={setValue} />
      </div>
      {changed.length > 0 && (
        <ul className="space-y-1 rounded-md bg-sunken p-3 text-xs break-words">
          {changed.map((each) => (
            <li key={each}>
              <span className="font-medium">{fields[each]?.title ?? each}</span>:{" "}
              {fields[each]?.writeOnly ? (
                "a new secret"
              ) : (
                <>
                  {JSON.stringify(instance.config[each] ?? fields[each]?.default) ?? "none"} →{" "}
                  {JSON.stringify(value[each] ?? fields[each]?.default) ?? "none"}
                </>
              )}
            </li>
          ))}
        </ul>
      )}
      <p className="text-xs text-muted">
        Its adapter reloads or restarts what is needed, or refuses with the reason; until it has succeeded, the old
        configuration stays.
      </p>
    </ActionDialog>
  );
}
