/** What a project may launch and, where it may not, why. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import CircleX from "lucide-react/icons/circle-x";
import Rocket from "lucide-react/icons/rocket";
import type { CatalogEntry } from "../api/client";
import { catalog } from "../api/queries/catalog";
import { ProjectPicker } from "../parts/ProjectPicker";
import { Status } from "../parts/Status";
import { useProject } from "../parts/session";
import { useTitle } from "../parts/title";
import { Empty, PageHead, ProblemBox, Skeleton } from "../parts/ui";

export function Catalog() {
  useTitle("Catalog");
  const search = useSearch({ from: "/shell/catalog" });
  const navigate = useNavigate({ from: "/catalog" });
  const { project, projects, isLoaded } = useProject(search.project);
  const entries = useQuery(catalog(project?.id));
  const wanted = (search.q ?? "").toLowerCase();
  const shown = (entries.data?.items ?? []).filter(
    (each) =>
      (!search.launchable || each.launchable) &&
      `${each.slug} ${each.display_name} ${each.category}`.toLowerCase().includes(wanted),
  );
  return (
    <>
      <PageHead title="Catalog" sub="The apps that this project may launch. Where it may not, the card says why.">
        <ProjectPicker
          projects={projects}
          value={project?.id}
          onChange={(id) => void navigate({ search: (before) => ({ ...before, project: id }) })}
        />
      </PageHead>
      <div className="mb-4 flex flex-wrap items-center gap-3">
        <input
          type="search"
          aria-label="Search the catalog"
          placeholder="Search by name or category"
          className="field max-w-xs"
          value={search.q ?? ""}
          onChange={(event) =>
            void navigate({ replace: true, search: (before) => ({ ...before, q: event.target.value || undefined }) })
          }
        />
        <label className="flex items-center gap-2">
          <input
            type="checkbox"
            className="size-4 accent-accent"
            checked={search.launchable ?? false}
            onChange={(event) =>
              void navigate({ search: (before) => ({ ...before, launchable: event.target.checked || undefined }) })
            }
          />
          Launchable now
        </label>
      </div>
      {isLoaded && !project ? (
        <Empty
          title="There is no project yet"
          command="mooring projects create --slug research --display-name Research"
        >
          An app runs in a project; an admin of the tenant creates one.
        </Empty>
      ) : entries.error ? (
        <ProblemBox error={entries.error} retry={() => entries.refetch()} />
      ) : !entries.data ? (
        <Skeleton rows={6} />
      ) : shown.length === 0 ? (
        <Empty title="No app is like this" command="mooring catalog list">
          {entries.data.items.length === 0
            ? "No app was published for this project."
            : `${entries.data.items.length} apps are in the catalog; change the search.`}
        </Empty>
      ) : (
        <ul className="grid gap-4 sm:grid-cols-2 lg:grid-cols-3">
          {shown.map((each) => (
            <AppCard key={each.app_id} entry={each} project={project?.id} />
          ))}
        </ul>
      )}
    </>
  );
}

function AppCard({ entry, project }: { entry: CatalogEntry; project: string | undefined }) {
  return (
    <li className="flex flex-col gap-3 rounded-lg border border-line bg-panel p-4">
      <div className="flex items-start gap-3">
        <span
          aria-hidden
          className="grid size-10 shrink-0 place-items-center rounded-md bg-accent-soft text-lg font-semibold text-accent"
        >
          {entry.display_name.slice(0, 1)}
        </span>
        <div className="min-w-0 flex-1">
          <h2 className="truncate text-base">
            <Link to="/apps/$app" params={{ app: entry.slug }} search={{ project }} className="hover:underline">
              {entry.display_name}
            </Link>
          </h2>
          <p className="truncate text-xs text-muted">
            {entry.category} · {entry.version ? `version ${entry.version.version}` : "no version"}
          </p>
        </div>
        {entry.version && entry.version.status !== "active" && <Status kind="promotion" value={entry.version.status} />}
      </div>
      <p className="line-clamp-3 flex-1 text-muted">
        {entry.description || entry.version?.release_notes || entry.slug}
      </p>
      {entry.launchable ? (
        <Link
          to="/launch/$app"
          params={{ app: entry.slug }}
          search={{ project }}
          className="inline-flex min-h-9 items-center justify-center gap-1.5 rounded-md bg-accent px-3 font-medium text-accent-ink hover:brightness-110"
        >
          <Rocket size={15} aria-hidden /> Launch<span className="sr-only"> {entry.display_name}</span>
        </Link>
      ) : (
        <ul className="space-y-1 rounded-md bg-sunken p-2.5 text-xs">
          {entry.hindrances.map((each) => (
            <li key={`${each.obstacle} ${each.reason}`} className="flex gap-1.5">
              <CircleX size={14} className="mt-px shrink-0 text-bad" aria-hidden />
              <span className="min-w-0 break-words">{each.reason}</span>
            </li>
          ))}
        </ul>
      )}
    </li>
  );
}
