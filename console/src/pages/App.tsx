/** One app of the catalog: its versions, what is in them, what fits it, how long it takes; two versions compared. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import Rocket from "lucide-react/icons/rocket";
import type { CatalogEntry, Schemas } from "../api/client";
import { catalog, catalogVersion, catalogVersions, defaultPlan } from "../api/queries/catalog";
import { Status } from "../parts/Status";
import { useProject } from "../parts/session";
import { Ago, duration, money } from "../parts/time";
import { useTitle } from "../parts/title";
import { CommandLine, CopyButton, Definition, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { NotFoundBody } from "./NotFound";

type Detail = Schemas["CatalogVersionDetail"];

export function App() {
  const { app } = useParams({ from: "/shell/apps/$app" });
  const search = useSearch({ from: "/shell/apps/$app" });
  const { project, isLoaded } = useProject(search.project);
  const entries = useQuery(catalog(project?.id));
  const entry = entries.data?.items.find((each) => each.slug === app);
  useTitle(entry?.display_name ?? app);
  if (entries.error) return <ProblemBox error={entries.error} retry={() => entries.refetch()} />;
  if ((isLoaded && !project) || (entries.data && !entry)) return <NotFoundBody noun="app" />;
  if (!entry || !project) return <Skeleton rows={8} />;
  return <AppBody entry={entry} projectId={project.id} version={search.version} other={search.compare} />;
}

interface AppBodyProps {
  entry: CatalogEntry;
  projectId: string;
  version: string | undefined;
  other: string | undefined;
}

function AppBody({ entry, projectId, version, other }: AppBodyProps) {
  const listed = useQuery(catalogVersions(projectId, entry.app_id));
  const all = listed.data?.items ?? [];
  const shown =
    all.find((each) => each.version === version) ?? all.find((each) => each.id === entry.version?.id) ?? all[0];
  const compared = all.find((each) => each.version === other && each.id !== shown?.id);
  const detail = useQuery({
    ...catalogVersion(projectId, entry.app_id, shown?.id ?? ""),
    enabled: shown !== undefined,
  });
  return (
    <>
      <PageHead title={entry.display_name} sub={entry.description || entry.category}>
        {entry.launchable ? (
          <Link
            to="/launch/$app"
            params={{ app: entry.slug }}
            search={{ project: projectId, version: version && shown?.offered ? version : undefined }}
            className="inline-flex min-h-8 items-center gap-1.5 rounded-md bg-accent px-3 font-medium text-accent-ink hover:brightness-110"
          >
            <Rocket size={15} aria-hidden /> Launch
          </Link>
        ) : (
          <ul className="text-xs text-warn">
            {entry.hindrances.map((each) => (
              <li key={`${each.obstacle} ${each.reason}`}>{each.reason}</li>
            ))}
          </ul>
        )}
      </PageHead>
      <div className="grid items-start gap-5 lg:grid-cols-[minmax(0,1fr)_21rem]">
        <div className="space-y-5">
          {listed.error ? (
            <ProblemBox error={listed.error} retry={() => listed.refetch()} />
          ) : !listed.data ? (
            <Skeleton />
          ) : (
            <VersionList versions={all} shown={shown?.id} other={compared?.version} />
          )}
          {compared && detail.data && (
            <Comparison projectId={projectId} appId={entry.app_id} one={detail.data} otherId={compared.id} />
          )}
          {detail.error ? (
            <ProblemBox error={detail.error} retry={() => detail.refetch()} />
          ) : (
            detail.data && <Contents detail={detail.data} />
          )}
        </div>
        <Fit entry={entry} projectId={projectId} />
      </div>
    </>
  );
}

interface VersionListProps {
  versions: Schemas["CatalogVersionView"][];
  shown: string | undefined;
  other: string | undefined;
}

function VersionList({ versions, shown, other }: VersionListProps) {
  const navigate = useNavigate({ from: "/apps/$app" });
  return (
    <Panel
      title="Versions"
      aside={
        versions.length > 1 && (
          <select
            aria-label="Compare with"
            className="field w-auto"
            value={other ?? ""}
            onChange={(event) =>
              void navigate({ search: (before) => ({ ...before, compare: event.target.value || undefined }) })
            }
          >
            <option value="">Compare with…</option>
            {versions
              .filter((each) => each.id !== shown)
              .map((each) => (
                <option key={each.id}>{each.version}</option>
              ))}
          </select>
        )
      }
    >
      {versions.length === 0 ? (
        <Empty title="No version is published yet" />
      ) : (
        <ul className="divide-y divide-line">
          {versions.map((each) => (
            <li key={each.id} className={`px-4 py-3 ${each.id === shown ? "bg-accent-soft" : ""}`}>
              <p className="flex flex-wrap items-center gap-2">
                <Link
                  to="/apps/$app"
                  params={{ app: each.app }}
                  search={(before) => ({ ...before, version: each.version })}
                  className="font-semibold hover:underline"
                >
                  {each.version}
                </Link>
                <Status kind="promotion" value={each.status} />
                <span className="text-xs text-muted">
                  <Ago at={each.created_at} />
                  {each.instances > 0 && `, ${each.instances} run here`}
                </span>
              </p>
              <p className="mt-1 break-words">{each.release_notes}</p>
              {(each.deprecation_reason ?? each.reason) && (
                <p className="text-xs break-words text-warn">{each.deprecation_reason ?? each.reason}</p>
              )}
              {each.superseded_by && (
                <p className="text-xs">
                  Its successor is{" "}
                  <Link
                    to="/apps/$app"
                    params={{ app: each.app }}
                    search={(before) => ({ ...before, version: each.superseded_by ?? undefined })}
                    className="link"
                  >
                    {each.superseded_by}
                  </Link>
                </p>
              )}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

interface Named {
  key?: string;
  name?: string;
  title?: string;
  description?: string;
  permission?: string;
  protocol?: string;
  min_count?: number;
  max_count?: number;
  read_only?: boolean;
}

function Contents({ detail }: { detail: Detail }) {
  const components = detail.components as Named[];
  const actions = detail.actions as Named[];
  const endpoints = detail.endpoints as Named[];
  return (
    <Panel title={`What is in ${detail.version}`}>
      <div className="divide-y divide-line">
        <Items
          title="Components"
          items={components}
          say={(each) => `${each.min_count ?? 0} to ${each.max_count ?? "any"}`}
        />
        <Items
          title="Actions"
          items={actions}
          say={(each) => `${each.permission}${each.read_only ? ", only reads" : ""}`}
        />
        <Items title="Endpoints" items={endpoints} say={(each) => each.protocol ?? ""} />
        <dl className="grid gap-4 p-4 sm:grid-cols-2">
          <Definition label="Kind">{detail.artifact_kind}</Definition>
          <Definition label="Its operator account may">
            {detail.required_actions.length === 0 ? "nothing" : detail.required_actions.join(", ")}
          </Definition>
          <Definition label="Digest of the manifest">
            <Digest text={detail.manifest_digest} />
          </Definition>
          <Definition label="Artifacts">
            {detail.digests.map((each) => (
              <Digest key={each} text={each} />
            ))}
          </Definition>
        </dl>
        <details className="px-4 py-3">
          <summary className="text-xs text-muted">Compatibility</summary>
          <pre className="mt-2 overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
            {JSON.stringify(detail.compatibility, null, 2)}
          </pre>
        </details>
      </div>
    </Panel>
  );
}

function Digest({ text }: { text: string }) {
  return (
    <span className="flex items-center font-mono text-xs">
      <span className="truncate">{text}</span>
      <CopyButton text={text} label="Copy the digest" />
    </span>
  );
}

function Items({ title, items, say }: { title: string; items: Named[]; say: (each: Named) => string }) {
  if (items.length === 0) return null;
  return (
    <div className="p-4">
      <h3 className="mb-2 text-xs font-medium text-muted">{title}</h3>
      <ul className="space-y-1.5">
        {items.map((each) => (
          <li key={each.key ?? each.name} className="break-words">
            <span className="font-medium">{each.title ?? each.key ?? each.name}</span>{" "}
            <span className="text-xs text-muted">{say(each)}</span>
            {each.description && <span className="block text-xs text-muted">{each.description}</span>}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** What a launch with the defaults would get: the capacities that fit, their price, and how long launches took. */
function Fit({ entry, projectId }: { entry: CatalogEntry; projectId: string }) {
  const plan = useQuery({ ...defaultPlan(projectId, entry.slug), enabled: entry.version !== null });
  return (
    <Panel title="Where it fits">
      {plan.error ? (
        <ProblemBox error={plan.error} retry={() => plan.refetch()} />
      ) : !plan.data ? (
        <Skeleton rows={4} />
      ) : (
        <div className="space-y-4 p-4">
          <dl>
            <Definition label="Ready after">
              {plan.data.expected.seconds == null
                ? "not measured yet"
                : `about ${duration(plan.data.expected.seconds * 1_000)}, the median of ${plan.data.expected.samples}`}
            </Definition>
          </dl>
          <ul className="space-y-2">
            {plan.data.shapes.map((each) => (
              <li key={`${each.sku} ${each.gpu_count}`} className="flex justify-between gap-3">
                <span className="min-w-0">
                  {each.gpu_count} × {each.gpu_model}
                  <span className="block text-xs break-words text-muted">
                    {each.sku}, {each.shape.replaceAll("_", " ")}
                    {!each.fits && `: ${each.because}`}
                  </span>
                </span>
                <span className="text-right whitespace-nowrap tabular-nums">
                  {money(each.price_minor_per_hour, each.currency)}/h
                  <span className={`block text-xs ${each.fits ? "text-good" : "text-warn"}`}>
                    {each.fits ? "fits" : each.available ? "does not fit" : "none exists"}
                  </span>
                </span>
              </li>
            ))}
          </ul>
          <CommandLine command={`mooring launch ${entry.slug} --plan`} />
        </div>
      )}
    </Panel>
  );
}

interface ComparisonProps {
  projectId: string;
  appId: string;
  one: Detail;
  otherId: string;
}

const COMPARED = [
  "components",
  "config_schema",
  "actions",
  "endpoints",
  "compatibility",
  "required_actions",
  "usage_units",
  "lifecycle",
  "digests",
] as const;

/** Every place in which two versions differ. */
function Comparison({ projectId, appId, one, otherId }: ComparisonProps) {
  const found = useQuery(catalogVersion(projectId, appId, otherId));
  if (found.error) return <ProblemBox error={found.error} retry={() => found.refetch()} />;
  if (!found.data) return <Skeleton rows={3} />;
  const other = found.data;
  const mine = new Map(COMPARED.flatMap((part) => leaves(one[part], part)));
  const theirs = new Map(COMPARED.flatMap((part) => leaves(other[part], part)));
  const places = [...new Set([...mine.keys(), ...theirs.keys()])].filter((each) => mine.get(each) !== theirs.get(each));
  return (
    <Panel title={`${one.version} against ${other.version}`}>
      {places.length === 0 ? (
        <Empty title="They do not differ in what a launch sees" />
      ) : (
        <div className="overflow-x-auto">
          <table className="w-full text-xs">
            <thead className="border-b border-line text-left text-muted">
              <tr>
                {["Place", one.version, other.version].map((each) => (
                  <th key={each} scope="col" className="px-4 py-2 font-medium">
                    {each}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody className="divide-y divide-line font-mono">
              {places.map((each) => (
                <tr key={each} className="align-top">
                  <th scope="row" className="px-4 py-1.5 text-left font-normal break-all">
                    {each}
                  </th>
                  <td className="px-4 py-1.5 break-all">{mine.get(each) ?? "–"}</td>
                  <td className="px-4 py-1.5 break-all">{theirs.get(each) ?? "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

/** Every value with its place; the items of a list are named by their key. */
function leaves(value: unknown, place: string): [string, string][] {
  if (typeof value !== "object" || value === null) return [[place, JSON.stringify(value ?? null)]];
  return Object.entries(value).flatMap(([name, each]) => {
    const named = each as Named | null;
    const key = Array.isArray(value) && typeof each === "object" ? (named?.key ?? named?.name ?? name) : name;
    return leaves(each, `${place}.${key}`);
  });
}
