/** One page for a launch: the form, and beside it what the server says about exactly this form. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import Minus from "lucide-react/icons/minus";
import Plus from "lucide-react/icons/plus";
import { type FormEvent, useEffect, useId, useMemo, useState } from "react";
import { answer, api, type CatalogEntry, isProblem, newKey, type Plan, type Schemas } from "../api/client";
import { catalog, catalogVersions, skus } from "../api/queries/catalog";
import { launchCommand } from "../parts/commands";
import { PlanCard, Presets } from "../parts/PlanCard";
import { ProjectPicker } from "../parts/ProjectPicker";
import { SameAs } from "../parts/SameAs";
import { type Config, Labelled, type Schema, SchemaForm } from "../parts/SchemaForm";
import { useProject } from "../parts/session";
import { useTitle } from "../parts/title";
import { Button, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { NotFoundBody } from "./NotFound";

const PLAN_DELAY_MS = 250;
type Body = Schemas["CreateInstance"];

export function Launch() {
  const { app } = useParams({ from: "/shell/launch/$app" });
  const search = useSearch({ from: "/shell/launch/$app" });
  const { project, projects } = useProject(search.project);
  const entries = useQuery(catalog(project?.id));
  useTitle(`Launch ${app}`);
  const entry = entries.data?.items.find((each) => each.slug === app);
  if (entries.error) return <ProblemBox error={entries.error} retry={() => entries.refetch()} />;
  if (!entries.data || !project) return <Skeleton rows={8} />;
  if (!entry) return <NotFoundBody noun="app" />;
  return <LaunchForm key={project.id} entry={entry} project={project} projects={projects} />;
}

interface LaunchFormProps {
  entry: CatalogEntry;
  project: Schemas["ProjectView"];
  projects: Schemas["ProjectView"][];
}

interface Component {
  key: string;
  title?: string;
  min_count?: number;
  max_count?: number;
}

function LaunchForm({ entry, project, projects }: LaunchFormProps) {
  const navigate = useNavigate();
  const offered = useQuery(skus).data?.items.filter((each) => each.status === "offered");
  const components = (entry.version?.components ?? []) as unknown as Component[];
  const [key] = useState(newKey);
  const given = useSearch({ from: "/shell/launch/$app" });
  const schema = (entry.version?.config_schema ?? {}) as Schema;
  const [name, setName] = useState(() => given.name ?? `${entry.slug}-${key.slice(0, 4)}`);
  const [sku, setSku] = useState<string | undefined>(given.sku);
  const [gpus, setGpus] = useState<number | undefined>(given.gpus);
  const [version, setVersion] = useState<string | undefined>(given.version);
  const [config, setConfig] = useState<Config>(() => prefilled(given.config, schema));
  const [topology, setTopology] = useState<Record<string, number>>(() =>
    Object.fromEntries(components.map((each) => [each.key, given.topology?.[each.key] ?? each.min_count ?? 1])),
  );
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<unknown>(null);

  const chosen = offered?.find((each) => each.slug === sku) ?? offered?.[0];
  const count = gpus ?? chosen?.allowed_gpu_counts[0];
  const body: Body = useMemo(
    () => ({
      app: entry.slug,
      name,
      config: config as Record<string, never>,
      topology,
      version: version ?? null,
      placement: { sku: chosen?.slug ?? null, gpu_count: count },
    }),
    [entry.slug, name, config, topology, version, chosen?.slug, count],
  );
  const plan = usePlan(project.id, body, chosen !== undefined);
  const errors = fieldErrors(plan.error ?? failure, plan.plan);
  const shown = { ...body, config: withoutSecrets(config, schema) as Body["config"] };
  const use = (choice: { sku: string; gpu_count: number }) => {
    setSku(choice.sku);
    setGpus(choice.gpu_count);
  };

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (busy || plan.waiting || !plan.plan?.launchable) return;
    setBusy(true);
    setFailure(null);
    try {
      const made = await answer(
        api.POST("/api/v1/projects/{project_id}/app-instances", {
          params: { path: { project_id: project.id }, header: { "Idempotency-Key": key } },
          body,
        }),
      );
      await navigate({ to: "/workloads/$id", params: { id: made.id }, search: { tab: "timeline" } });
    } catch (error) {
      setFailure(error);
      setBusy(false);
    }
  };

  return (
    <form onSubmit={submit} noValidate>
      <PageHead title={`Launch ${entry.display_name}`} sub={entry.version?.release_notes} />
      <div className="grid items-start gap-5 lg:grid-cols-[minmax(0,1fr)_21rem]">
        <div className="space-y-5">
          <Panel title="Where">
            <Presets plan={plan.plan} sku={chosen?.slug} gpus={count} use={use} />
            <div className="grid gap-4 p-4 sm:grid-cols-2">
              <Labelled id="name" label="Name" required error={errors.name}>
                <input
                  id="name"
                  className="field"
                  required
                  autoComplete="off"
                  maxLength={60}
                  aria-invalid={errors.name ? true : undefined}
                  value={name}
                  onChange={(event) => setName(event.target.value)}
                />
              </Labelled>
              <div>
                <span className="mb-1 block font-medium">Project</span>
                <ProjectPicker
                  projects={projects}
                  value={project.id}
                  onChange={(id) => void navigate({ to: ".", search: { project: id } })}
                />
              </div>
              <Labelled id="sku" label="Capacity" help={chosen?.display_name}>
                <select
                  id="sku"
                  className="field"
                  value={chosen?.slug ?? ""}
                  onChange={(event) => {
                    setSku(event.target.value);
                    setGpus(undefined);
                  }}
                >
                  {offered?.map((each) => (
                    <option key={each.id} value={each.slug}>
                      {each.slug} ({each.gpu_model})
                    </option>
                  ))}
                </select>
              </Labelled>
              <Labelled id="gpus" label="GPUs of each member" error={errors.gpus}>
                <select
                  id="gpus"
                  className="field"
                  value={count ?? ""}
                  onChange={(e) => setGpus(Number(e.target.value))}
                >
                  {chosen?.allowed_gpu_counts.map((each) => (
                    <option key={each}>{each}</option>
                  ))}
                </select>
              </Labelled>
              <VersionField entry={entry} projectId={project.id} value={version} onChange={setVersion} />
            </div>
          </Panel>
          {components.length > 0 && (
            <Panel title="Members">
              <ul className="divide-y divide-line">
                {components.map((each) => (
                  <Stepper
                    key={each.key}
                    component={each}
                    value={topology[each.key] ?? 0}
                    onChange={(value) => setTopology({ ...topology, [each.key]: value })}
                  />
                ))}
              </ul>
            </Panel>
          )}
          <Panel title="Configuration">
            <div className="p-4">
              <SchemaForm schema={schema} value={config} onChange={setConfig} errors={errors} />
            </div>
          </Panel>
        </div>
        <PlanCard
          plan={plan.plan}
          error={plan.error}
          waiting={plan.waiting}
          chosen={chosen && count !== undefined ? { sku: chosen.slug, gpu_count: count } : undefined}
          use={use}
          same={
            <SameAs
              command={launchCommand(shown, project.slug)}
              method="POST"
              path={`/api/v1/projects/${project.id}/app-instances`}
              body={shown}
            />
          }
          action={
            <Button
              type="submit"
              look="primary"
              className="w-full"
              disabled={busy}
              disabledReason={
                plan.waiting ? "the plan is being made" : plan.plan?.launchable ? undefined : "see the plan above"
              }
            >
              {busy ? "Launching…" : "Launch"}
            </Button>
          }
          failure={failure}
        />
      </div>
    </form>
  );
}

/** The server's plan for this form. `waiting` until it belongs to the form as it is now. */
function usePlan(projectId: string, body: Body, ready: boolean) {
  const wanted = JSON.stringify(body);
  const [settled, setSettled] = useState("");
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(wanted), PLAN_DELAY_MS);
    return () => window.clearTimeout(timer);
  }, [wanted]);
  const query = useQuery({
    queryKey: ["plan", projectId, settled],
    queryFn: () =>
      answer(
        api.POST("/api/v1/projects/{project_id}/app-instances:plan", {
          params: { path: { project_id: projectId } },
          body: JSON.parse(settled) as Body,
        }),
      ),
    enabled: ready && settled !== "",
    placeholderData: (before: Plan | undefined) => before,
    refetchInterval: 30_000,
    retry: false,
  });
  const waiting = settled !== wanted || query.isPlaceholderData || query.isPending;
  return { plan: query.error ? undefined : query.data, error: query.error, waiting: waiting && !query.error };
}

/** What the URL sets; a secret is never taken from it. */
function prefilled(given: Config | undefined, schema: Schema): Config {
  return Object.fromEntries(
    Object.entries(given ?? {}).filter(([name]) => {
      const field = schema.properties?.[name];
      return field !== undefined && !field.writeOnly;
    }),
  );
}

function withoutSecrets(config: Config, schema: Schema): Config {
  return Object.fromEntries(
    Object.entries(config).map(([name, value]) => [name, schema.properties?.[name]?.writeOnly ? "…" : value]),
  );
}

interface VersionFieldProps {
  entry: CatalogEntry;
  projectId: string;
  value: string | undefined;
  onChange: (value: string | undefined) => void;
}

function VersionField({ entry, projectId, value, onChange }: VersionFieldProps) {
  const listed = useQuery(catalogVersions(projectId, entry.app_id)).data?.items.filter((each) => each.offered);
  return (
    <Labelled id="version" label="Version" help={listed?.find((each) => each.version === value)?.release_notes}>
      <select
        id="version"
        className="field"
        value={value ?? ""}
        onChange={(event) => onChange(event.target.value || undefined)}
      >
        <option value="">the newest that is offered ({entry.version?.version})</option>
        {listed?.map((each) => (
          <option key={each.id} value={each.version}>
            {each.version} ({each.status})
          </option>
        ))}
      </select>
    </Labelled>
  );
}

/** Where a refusal that is about an amount belongs in the form. */
const FIELD_OF_LIMIT: Record<string, string> = { gpus: "gpus", instances: "name" };

function fieldErrors(error: unknown, plan: Plan | undefined): Record<string, string> {
  const found: Record<string, string> = {};
  const add = (path: unknown, text: string) => {
    if (typeof path === "string") found[path.replace(/^\/?(config[./])?/, "").split(/[./]/)[0] ?? path] = text;
  };
  if (isProblem(error)) add(error.details.path, error.detail);
  for (const each of plan?.hindrances ?? []) add(each.details.path, each.detail);
  for (const each of plan?.limits ?? []) {
    const field = FIELD_OF_LIMIT[each.kind];
    if (field && each.exceeded)
      found[field] =
        `${each.requested} more are over the quota of the ${each.scope}: ${each.used} of ${each.maximum} are used.`;
  }
  return found;
}

interface StepperProps {
  component: Component;
  value: number;
  onChange: (value: number) => void;
}

function Stepper({ component, value, onChange }: StepperProps) {
  const id = useId();
  const { min_count: min = 0, max_count: max = 1_000, title, key } = component;
  const name = title ?? key;
  const step = "grid size-8 place-items-center rounded-md border border-line hover:bg-sunken disabled:opacity-40";
  return (
    <li className="flex items-center justify-between gap-3 px-4 py-3">
      <label htmlFor={id}>
        <span className="block font-medium">{name}</span>
        <span className="text-xs text-muted">
          {min} to {max}
        </span>
      </label>
      <div className="flex items-center gap-2">
        <button
          type="button"
          className={step}
          aria-label={`One ${name} less`}
          disabled={value <= min}
          onClick={() => onChange(value - 1)}
        >
          <Minus size={14} aria-hidden />
        </button>
        <input
          id={id}
          type="number"
          min={min}
          max={max}
          className="field w-16 text-center"
          value={value}
          onChange={(event) => onChange(Math.max(min, Math.min(max, Number(event.target.value))))}
        />
        <button
          type="button"
          className={step}
          aria-label={`One ${name} more`}
          disabled={value >= max}
          onClick={() => onChange(value + 1)}
        >
          <Plus size={14} aria-hidden />
        </button>
      </div>
    </li>
  );
}
