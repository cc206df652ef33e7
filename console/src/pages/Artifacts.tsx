/** Which artifact and which app version stands where in its promotion, and who vouches for them. */
import { useQueries, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer } from "../api/client";
import { apiAt, flagOf, HERE, type Place } from "../api/place";
import { type Artifact, apps, artifacts, type Trigger, type Version, versions } from "../api/queries/artifacts";
import { Choice, FilterBar } from "../parts/Filters";
import { PromoteDialog, type Promotion } from "../parts/PromoteDialog";
import { type BoardColumn, type Card, PROMOTIONS, PromotionBoard } from "../parts/PromotionBoard";
import { PlacePicker, useLack, usePlace } from "../parts/place";
import { Status } from "../parts/Status";
import { Tabs } from "../parts/Tabs";
import { SignerKeys, Sources } from "../parts/TrustLists";
import { useTitle } from "../parts/title";
import { CommandLine, Empty, PageHead, ProblemBox, Skeleton } from "../parts/ui";
import { ARTIFACT_KINDS, ARTIFACT_VIEWS, type ArtifactsSearch } from "../routes/catalog";

export function Artifacts() {
  useTitle("Artifacts");
  const search = useSearch({ from: "/shell/artifacts" });
  const navigate = useNavigate({ from: "/artifacts" });
  const { place, word, options } = usePlace(search.at);
  const view = search.view ?? "artifacts";
  const set = (change: ArtifactsSearch) =>
    void navigate({ search: (before) => ({ ...before, cursor: undefined, ...change }) });
  return (
    <>
      <PageHead title="Artifacts" sub="Which digest and which version stands where, and who vouches for it.">
        <PlacePicker options={options} value={word} onChange={(next) => set({ at: next, app: undefined })} />
      </PageHead>
      <Tabs
        label="Views"
        tabs={ARTIFACT_VIEWS}
        current={view}
        go={(next) => set({ view: next === "artifacts" ? undefined : next })}
      />
      {!place ? (
        <Skeleton />
      ) : view === "artifacts" ? (
        <ArtifactBoard place={place} word={word} search={search} set={set} />
      ) : view === "app versions" ? (
        <VersionBoard place={place} search={search} set={set} />
      ) : view === "sources" ? (
        <Sources place={place} cursor={search.cursor} go={(cursor) => set({ cursor })} />
      ) : (
        <SignerKeys place={place} cursor={search.cursor} go={(cursor) => set({ cursor })} />
      )}
    </>
  );
}

interface BoardProps {
  place: Place;
  search: ArtifactsSearch;
  set: (change: ArtifactsSearch) => void;
}

interface Asked {
  card: Card;
  trigger: Trigger | undefined;
}

/** The repository and the first of its digest: enough to know it, short enough for a card. */
export function shortName({ location, digest, labels }: Artifact): string {
  const last =
    location
      .split("@")[0]
      ?.replace(/^file:/, "")
      .split("/")
      .pop() ?? location;
  return labels.name ?? `${last} ${digest.split(":").pop()?.slice(0, 8)}`;
}

function ArtifactBoard({ place, word, search, set }: BoardProps & { word: string | undefined }) {
  const [asked, setAsked] = useState<Asked | null>(null);
  const queries = useQueryClient();
  const lack = useLack(place)("artifact.promote");
  const pages = useQueries({ queries: PROMOTIONS.map((state) => artifacts(place, state, { kind: search.kind })) });
  const isEmpty = pages.every((each) => each.data?.items.length === 0);
  const columns = PROMOTIONS.map((state, index): BoardColumn => {
    const page = pages[index];
    return {
      state,
      error: page?.error,
      cards: page?.data?.items.map((each) => ({
        id: each.id,
        name: shortName(each),
        state: each.promotion,
        moves: each.allowed_moves,
        lack:
          each.allowed_moves.length > 0 || each.visibility === place.scope
            ? undefined
            : `it belongs to the ${each.visibility}`,
        body: <ArtifactCard artifact={each} word={word} />,
      })),
      more: page?.data?.next_cursor && (
        <p className="px-1 pt-2 text-xs text-muted">
          There are more: <code className="font-mono">mooring artifacts list --promotion {state}</code>
        </p>
      ),
    };
  });
  const act = async (key: string, body: Promotion) => {
    if (!asked) return;
    const { canary_percentage: _, ...sent } = body;
    await answer(
      apiAt(place).POST("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/promote", {
        params: { path: { ...HERE, artifact_id: asked.card.id }, header: { "Idempotency-Key": key } },
        body: sent,
      }),
    );
    await queries.invalidateQueries({ queryKey: ["artifacts"] });
  };
  return (
    <>
      <FilterBar isFiltered={Boolean(search.kind)} clear={() => set({ kind: undefined })}>
        <Choice label="Kind" words={ARTIFACT_KINDS} value={search.kind} onChange={(kind) => set({ kind })} />
      </FilterBar>
      {isEmpty && (
        <Empty title="No artifact was registered" command={`mooring artifacts register ${flagOf(place)} --kind oci`}>
          An artifact is an image or a file, pinned by its digest. Register one, and promote it step by step.
        </Empty>
      )}
      <PromotionBoard columns={columns} lack={lack} move={(card, trigger) => setAsked({ card, trigger })} />
      <div className="mt-5">
        <CommandLine command={`mooring artifacts list ${flagOf(place)}`} />
      </div>
      {asked && (
        <PromoteDialog
          card={asked.card}
          trigger={asked.trigger}
          command={`mooring artifacts promote ${flagOf(place)} ${asked.card.id}`}
          act={act}
          close={() => setAsked(null)}
        />
      )}
    </>
  );
}

function ArtifactCard({ artifact, word }: { artifact: Artifact; word: string | undefined }) {
  const check = artifact.check;
  return (
    <>
      <Link
        to="/artifacts/$id"
        params={{ id: artifact.id }}
        search={{ at: word }}
        className="block font-medium break-words hover:underline"
        draggable={false}
      >
        {shortName(artifact)}
      </Link>
      <span className="flex flex-wrap items-center gap-1.5 text-xs text-muted">
        <Status kind="trust" value={artifact.trust} />
        {artifact.kind} of the {artifact.visibility}
      </span>
      {check && (check.status === "running" || check.status === "accepted") && (
        <p className="text-xs text-busy">
          {check.name} check: {progressOf(check.bytes_done, check.bytes_total ?? null)}
        </p>
      )}
    </>
  );
}

function progressOf(done: number, total: number | null): string {
  const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  return total ? `${Math.floor((done / total) * 100)} % of ${mib(total)}` : mib(done);
}

function VersionBoard({ place, search, set }: BoardProps) {
  const [asked, setAsked] = useState<Asked | null>(null);
  const queries = useQueryClient();
  const lack = useLack(place)("app_version.promote");
  const known = useQuery(apps(place));
  const app = known.data?.items.find((each) => each.id === search.app) ?? known.data?.items[0];
  const page = useQuery(versions(place, app?.id));
  if (place.scope === "project")
    return <Empty title="Apps belong to a tenant or to the platform">Choose the whole tenant as the place.</Empty>;
  if (known.error) return <ProblemBox error={known.error} />;
  if (!known.data) return <Skeleton />;
  if (!app)
    return (
      <Empty title="No app was registered here" command={`mooring apps create ${flagOf(place)} --slug my-app`}>
        An app has versions, and each version is promoted step by step.
      </Empty>
    );
  const columns = PROMOTIONS.map(
    (state): BoardColumn => ({
      state,
      error: page.error,
      cards: page.data?.items.filter((each) => each.status === state).map(versionCard),
    }),
  );
  const act = async (key: string, body: Promotion) => {
    if (!asked) return;
    await answer(
      apiAt(place).POST("/api/v1/tenants/{tenant_id}/apps/{app_id}/versions/{version_id}/promote", {
        params: {
          path: { ...HERE, app_id: app.id, version_id: asked.card.id },
          header: { "Idempotency-Key": key },
        },
        body,
      }),
    );
    await queries.invalidateQueries({ queryKey: ["versions"] });
  };
  return (
    <>
      <FilterBar isFiltered={false} clear={() => undefined}>
        <select
          aria-label="App"
          className="field w-auto"
          value={app.id}
          onChange={(event) => set({ app: event.target.value })}
        >
          {known.data.items.map((each) => (
            <option key={each.id} value={each.id}>
              {each.display_name}
            </option>
          ))}
        </select>
      </FilterBar>
      <PromotionBoard columns={columns} lack={lack} move={(card, trigger) => setAsked({ card, trigger })} />
      {asked && (
        <PromoteDialog
          card={asked.card}
          trigger={asked.trigger}
          command={`mooring apps versions promote ${flagOf(place)} ${app.slug} ${asked.card.id}`}
          isVersion
          act={act}
          close={() => setAsked(null)}
        />
      )}
    </>
  );
}

function versionCard(version: Version): Card {
  return {
    id: version.id,
    name: `${version.app_slug} ${version.version}`,
    state: version.status,
    moves: version.allowed_moves,
    body: (
      <>
        <p className="font-medium">{version.version}</p>
        {version.canary_percentage !== null && version.status === "canary" && (
          <p className="text-xs text-muted">{version.canary_percentage} % of new launches</p>
        )}
        {version.deprecation_reason && <p className="text-xs text-muted">{version.deprecation_reason}</p>}
        {version.superseded_by && (
          <p className="text-xs text-muted">
            successor <span className="font-mono break-all">{version.superseded_by}</span>
          </p>
        )}
        <p className="truncate font-mono text-xs text-muted" title={version.manifest_digest}>
          {version.manifest_digest}
        </p>
      </>
    ),
  };
}
