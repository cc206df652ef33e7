/** Every instance of the tenant or of one project; the server filters and pages, the URL has the filter. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import type { Instance } from "../api/client";
import { type InstanceFilter, instances } from "../api/queries";
import { ProjectPicker } from "../parts/ProjectPicker";
import { Status } from "../parts/Status";
import { useProject, useScope } from "../parts/session";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { HEALTHS, INSTANCE_STATES } from "../router";

const TYPING_MS = 250;

export function Workloads() {
  useTitle("Workloads");
  const filter = useSearch({ from: "/shell/workloads" });
  const navigate = useNavigate({ from: "/workloads" });
  const { tenant, project } = useScope(filter.project);
  const { projects } = useProject(filter.project);
  const page = useQuery(instances(tenant, { ...filter, project }));
  const slugs = new Map(projects.map((each) => [each.id, each.slug]));
  const set = (change: InstanceFilter, replace = false) =>
    void navigate({ replace, search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const isFiltered = Boolean(filter.q || filter.status || filter.health || filter.attention || filter.project);

  return (
    <>
      <PageHead title="Workloads" sub="Everything that was launched, the newest first.">
        <Link
          to="/catalog"
          className="inline-flex min-h-8 items-center rounded-md bg-accent px-3 font-medium text-accent-ink hover:brightness-110"
        >
          Launch an app
        </Link>
      </PageHead>
      <search className="mb-4 flex flex-wrap items-center gap-2">
        <NameFilter value={filter.q ?? ""} onChange={(q) => set({ q: q || undefined }, true)} />
        <Choice label="State" words={INSTANCE_STATES} value={filter.status} onChange={(status) => set({ status })} />
        <Choice label="Health" words={HEALTHS} value={filter.health} onChange={(health) => set({ health })} />
        <ProjectPicker
          projects={projects}
          value={project}
          all={tenant ? "All projects" : undefined}
          onChange={(project) => set({ project })}
        />
        <label className="flex items-center gap-2 px-1">
          <input
            type="checkbox"
            className="size-4 accent-accent"
            checked={filter.attention ?? false}
            onChange={(event) => set({ attention: event.target.checked || undefined })}
          />
          Needs attention
        </label>
        {isFiltered && (
          <Button look="ghost" onClick={() => void navigate({ search: {} })}>
            Clear
          </Button>
        )}
      </search>
      <Panel>
        {page.error ? (
          <ProblemBox error={page.error} retry={() => page.refetch()} />
        ) : !page.data ? (
          <Skeleton rows={8} />
        ) : page.data.items.length === 0 ? (
          isFiltered ? (
            <Empty title="Nothing matches the filter" command="mooring instances list" />
          ) : (
            <Empty title="Nothing was launched yet" command="mooring launch hello --open">
              Choose an app in the catalog; it runs in a minute.
            </Empty>
          )
        ) : (
          <Table rows={page.data.items} slugs={slugs} />
        )}
      </Panel>
      <nav aria-label="Pages of the list" className="mt-3 flex justify-end gap-2">
        {filter.cursor && <Button onClick={() => set({ cursor: undefined })}>Newest</Button>}
        {page.data?.next_cursor && (
          <Button onClick={() => set({ cursor: page.data?.next_cursor ?? undefined })}>Older</Button>
        )}
      </nav>
    </>
  );
}

function Table({ rows, slugs }: { rows: Instance[]; slugs: Map<string, string> }) {
  const head = "px-4 py-2 text-left text-xs font-medium text-muted";
  return (
    <div className="overflow-x-auto">
      <table className="w-full">
        <caption className="sr-only">Workloads</caption>
        <thead className="border-b border-line max-md:sr-only">
          <tr>
            {["Name", "App", "State", "Health", "Members", "Project", "Launched"].map((each) => (
              <th key={each} scope="col" className={head}>
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="divide-y divide-line">
          {rows.map((each) => (
            <Row key={each.id} instance={each} project={slugs.get(each.project_id) ?? ""} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ instance, project }: { instance: Instance; project: string }) {
  const current = instance.members_summary.reduce((sum, each) => sum + each.healthy, 0);
  const desired = instance.members_summary.reduce((sum, each) => sum + each.desired, 0);
  const cell = "md:px-4 md:py-2.5 align-top";
  return (
    <tr className="max-md:flex max-md:flex-wrap max-md:items-center max-md:gap-x-3 max-md:gap-y-1 max-md:px-4 max-md:py-3 hover:bg-sunken">
      <td className={`${cell} max-md:w-full`}>
        <Link to="/workloads/$id" params={{ id: instance.id }} className="font-medium hover:underline">
          {instance.name}
        </Link>
        {instance.needs_attention && (
          <p className="max-w-xs truncate text-xs text-warn">
            {instance.failure_detail ?? instance.operation?.blocker ?? instance.health_detail ?? "needs attention"}
          </p>
        )}
      </td>
      <td className={`${cell} text-muted`}>
        {instance.app} {instance.version}
      </td>
      <td className={cell}>
        <Status kind="instance" value={instance.status} />
      </td>
      <td className={cell}>{instance.status === "running" && <Status kind="health" value={instance.health} />}</td>
      <td className={`${cell} tabular-nums`}>
        {current}/{desired}
        <span className="text-muted md:sr-only"> healthy</span>
      </td>
      <td className={`${cell} text-muted`}>{project}</td>
      <td className={`${cell} text-muted`}>
        <Ago at={instance.created_at} />
      </td>
    </tr>
  );
}

function NameFilter({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    if (typed === value) return;
    const timer = window.setTimeout(() => onChange(typed), TYPING_MS);
    return () => window.clearTimeout(timer);
  }, [typed, value, onChange]);
  return (
    <input
      type="search"
      aria-label="Name or id"
      placeholder="Name or id begins with"
      maxLength={64}
      className="field w-full sm:w-56"
      value={typed}
      onChange={(event) => setTyped(event.target.value)}
    />
  );
}

interface ChoiceProps<T extends string> {
  label: string;
  words: readonly T[];
  value: T | undefined;
  onChange: (value: T | undefined) => void;
}

function Choice<T extends string>({ label, words, value, onChange }: ChoiceProps<T>) {
  return (
    <select
      aria-label={label}
      className="field w-auto"
      value={value ?? ""}
      onChange={(event) => onChange(words.find((each) => each === event.target.value))}
    >
      <option value="">{label}: any</option>
      {words.map((each) => (
        <option key={each}>{each}</option>
      ))}
    </select>
  );
}
