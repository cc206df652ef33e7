/** Who did what, and what was refused. The server filters; the filter stands in the URL. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import type { Schemas } from "../api/client";
import { flagOf, type Place } from "../api/place";
import { type AuditFilter, audit } from "../api/queries/records";
import { reference, useMeaning } from "../api/queries/reference";
import { AuditChain } from "../parts/AuditChain";
import { DataTable } from "../parts/DataTable";
import { Choice, FilterBar, TextFilter } from "../parts/Filters";
import { JsonDiff } from "../parts/JsonDiff";
import { PlacePicker, usePlace } from "../parts/place";
import { Status } from "../parts/Status";
import { Ago, Clock } from "../parts/time";
import { useTitle } from "../parts/title";
import { CommandLine, CopyButton, Empty, PageHead } from "../parts/ui";
import { ACTOR_KINDS, type AuditSearch, OUTCOMES } from "../routes/records";

type Row = Schemas["AuditView"];

const RANGES = { "last hour": 3_600_000, "last day": 86_400_000, "last week": 604_800_000 };
type Range = keyof typeof RANGES;

export function Audit() {
  useTitle("Audit");
  const search = useSearch({ from: "/shell/audit" });
  const navigate = useNavigate({ from: "/audit" });
  const { place, word, options } = usePlace(search.at);
  const actions = useQuery(reference).data?.actions ?? [];
  const set = (change: AuditSearch, replace = false) =>
    void navigate({ replace, search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const filter: AuditFilter = {
    actor_id: search.actor,
    actor_kind: search.kind,
    action: search.action,
    outcome: search.outcome,
    subject_id: search.target,
    correlation_id: search.correlation,
    since: search.since,
    until: search.until,
    cursor: search.cursor,
  };
  const page = useQuery(audit(place, filter));
  const { at, cursor, ...chosen } = search;
  const isFiltered = Object.values(chosen).some((each) => each !== undefined);
  const command = place ? commandOf(place, search) : "mooring audit";
  return (
    <>
      <PageHead title="Audit" sub="Who did what, or was refused, the newest first.">
        <PlacePicker options={options} value={word} onChange={(next) => set({ at: next })} />
      </PageHead>
      <FilterBar isFiltered={isFiltered} clear={() => void navigate({ search: { at } })}>
        <Choice label="Outcome" words={OUTCOMES} value={search.outcome} onChange={(outcome) => set({ outcome })} />
        <Choice label="Actor" words={ACTOR_KINDS} value={search.kind} onChange={(kind) => set({ kind })} />
        <Choice
          label="Action"
          words={actions.map((each) => each.key)}
          value={search.action}
          onChange={(action) => set({ action })}
        />
        <Choice
          label="Time"
          words={Object.keys(RANGES) as Range[]}
          value={undefined}
          onChange={(range) => set({ since: range && sinceOf(range), until: undefined })}
        />
        <TextFilter label="Actor id" value={search.actor} onChange={(actor) => set({ actor }, true)} />
        <TextFilter label="Target id" value={search.target} onChange={(target) => set({ target }, true)} />
        <TextFilter
          label="Correlation id"
          value={search.correlation}
          onChange={(correlation) => set({ correlation }, true)}
        />
      </FilterBar>
      <Chips search={search} set={set} />
      <DataTable
        label="Audit entries"
        columns={[
          { head: "Time", cell: (each) => <When row={each} /> },
          { head: "Outcome", cell: (each) => <Status kind="outcome" value={each.outcome} /> },
          { head: "What", narrow: "line", cell: (each) => <What row={each} place={word} /> },
          { head: "Who", narrow: "line", cell: (each) => <Who row={each} set={set} /> },
        ]}
        query={page}
        rowKey={(each) => each.id}
        pages={{ cursor: search.cursor, go: (next) => set({ cursor: next }) }}
        empty={
          isFiltered ? (
            <Empty title="No entry is like this" command={command}>
              Rows that retention deleted are not found any more; an export has them.
            </Empty>
          ) : (
            <Empty title="Nothing was written yet" command={command} />
          )
        }
      />
      <div className="mt-5 grid gap-5 lg:grid-cols-2">
        <AuditChain place={place} />
        <section className="space-y-2" aria-label="From the command line">
          <p className="text-xs text-muted">
            The same from the command line, and the whole trail with its hashes as NDJSON:
          </p>
          <CommandLine command={command} />
          {place && place.scope !== "project" && (
            <CommandLine command={`mooring audit export ${flagOf(place)} > audit.ndjson`} />
          )}
        </section>
      </div>
    </>
  );
}

/** Rounded to the minute, so that the address of a range stays the same for a moment. */
function sinceOf(range: Range): string {
  const minute = 60_000;
  return new Date(Math.floor((Date.now() - RANGES[range]) / minute) * minute).toISOString();
}

const FLAGS: [keyof AuditSearch, string][] = [
  ["outcome", "--outcome"],
  ["kind", "--actor-kind"],
  ["action", "--action"],
  ["actor", "--actor"],
  ["target", "--subject"],
  ["correlation", "--correlation"],
  ["since", "--since"],
  ["until", "--until"],
];

function commandOf(place: Place, search: AuditSearch): string {
  const words = FLAGS.filter(([name]) => search[name]).map(([name, flag]) => `${flag} ${search[name]}`);
  return ["mooring audit", flagOf(place), ...words].join(" ");
}

const CHIPS: [keyof AuditSearch, string][] = [
  ["actor", "actor"],
  ["target", "target"],
  ["correlation", "correlation"],
  ["since", "since"],
  ["until", "until"],
];

/** What the list is filtered by beyond the choices above; each chip can be taken away. */
function Chips({ search, set }: { search: AuditSearch; set: (change: AuditSearch) => void }) {
  const shown = CHIPS.filter(([name]) => search[name]);
  if (shown.length === 0) return null;
  return (
    <ul aria-label="Filters" className="mb-4 flex flex-wrap gap-2">
      {shown.map(([name, label]) => (
        <li key={name} className="flex items-center gap-1 rounded-full bg-accent-soft py-0.5 pr-1 pl-3 text-xs">
          <span className="text-muted">{label}</span>
          <span className="font-mono break-all">{search[name]}</span>
          <button
            type="button"
            aria-label={`Remove the filter ${label}`}
            className="rounded-full px-1.5 hover:bg-sunken"
            onClick={() => set({ [name]: undefined })}
          >
            ×
          </button>
        </li>
      ))}
    </ul>
  );
}

function When({ row }: { row: Row }) {
  return (
    <span className="flex flex-col">
      <Clock at={row.occurred_at} />
      <span className="text-xs text-muted">
        <Ago at={row.occurred_at} />
      </span>
    </span>
  );
}

function What({ row, place }: { row: Row; place: string | undefined }) {
  const [isOpen, setOpen] = useState(false);
  const meaning = useMeaning()("action", row.action);
  const isRefused = row.outcome !== "done";
  return (
    <div className={isRefused ? "border-l-2 border-bad pl-3" : ""}>
      <p>
        <span className="font-medium">{row.action}</span>
        {row.count > 1 && <span className="text-muted"> {row.count} times</span>}{" "}
        {row.subject_id && <span className="font-mono text-xs text-muted break-all">{row.subject_id}</span>}
      </p>
      {(row.reason ?? meaning) && <p className="max-w-xl text-xs text-muted">{row.reason ?? meaning}</p>}
      <div className="mt-1 flex flex-wrap items-center gap-x-3 gap-y-1 text-xs">
        <Link to="/events" search={{ at: place, correlation: row.correlation_id }} className="link">
          Follow <span className="font-mono break-all">{row.correlation_id}</span>
        </Link>
        <CopyButton text={row.correlation_id} label="Copy the correlation id" />
        {(row.before || row.after) && (
          <button type="button" className="link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            {isOpen ? "Hide the change" : "Show the change"}
          </button>
        )}
      </div>
      {isOpen && <JsonDiff before={row.before} after={row.after} />}
    </div>
  );
}

function Who({ row, set }: { row: Row; set: (change: AuditSearch) => void }) {
  return (
    <div className="text-xs">
      <button type="button" className="link font-mono break-all text-left" onClick={() => set({ actor: row.actor_id })}>
        {row.actor_id}
      </button>
      <p className="text-muted">
        {row.actor_kind.replaceAll("_", " ")}
        {row.remote_address && ` from ${row.remote_address}`}
        {row.break_glass_id && <span className="font-medium text-warn"> by break-glass</span>}
      </p>
    </div>
  );
}
