/** What needs me, what runs and what it costs, what happened last. */
import { useQuery } from "@tanstack/react-query";
import { Link, Navigate } from "@tanstack/react-router";
import Rocket from "lucide-react/icons/rocket";
import type { ReactNode } from "react";
import { type Instance, isProblem, type Schemas } from "../api/client";
import type { Scope } from "../api/queries/identity";
import { budgets, cost } from "../api/queries/money";
import { attention } from "../api/queries/overview";
import { recentEvents } from "../api/queries/records";
import { useMeaning } from "../api/queries/reference";
import { instances } from "../api/queries/runtime";
import { AttentionList } from "../parts/AttentionList";
import { Status } from "../parts/Status";
import { useScope, useTenant } from "../parts/session";
import { Ago, Clock, money } from "../parts/time";
import { useTitle } from "../parts/title";
import { CommandLine, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";

const SHOWN = 8;
const EVENTS_SHOWN = 10;

export function Home() {
  useTitle("Home");
  const tenant = useTenant();
  const scope = useScope();
  const { project } = scope;
  const needed = useQuery({ ...attention(scope), enabled: project !== undefined || Boolean(scope.tenant) });
  const running = useQuery(instances(scope.tenant, { status: "running", project, limit: SHOWN }));
  const any = useQuery(instances(scope.tenant, { project, limit: 1 }));
  if (tenant === null) return <Navigate to="/operate" replace />;
  const isNew = any.data?.items.length === 0;
  return (
    <>
      <PageHead title="Home" sub="What needs you, what runs and what it costs, and what happened last.">
        <LaunchLink />
      </PageHead>
      <div className="grid gap-5 lg:grid-cols-2">
        {isNew ? (
          <FirstSteps />
        ) : (
          <Panel title="Needs you" className="lg:col-span-2">
            <AttentionList query={needed} clear="Nothing needs you." />
          </Panel>
        )}
        <Panel title="Running" aside={<ListLink search={{ status: "running" }} />}>
          <Rows
            query={running}
            empty={
              <Empty title="Nothing runs now" command="mooring launch hello --open">
                <LaunchLink />
              </Empty>
            }
          />
        </Panel>
        <Panel title="What it costs">
          <Spending scope={scope} />
        </Panel>
        <Panel title="Recent events" className="lg:col-span-2">
          <RecentEvents scope={scope} />
        </Panel>
      </div>
    </>
  );
}

function LaunchLink() {
  return (
    <Link to="/catalog" className="link inline-flex items-center gap-1.5">
      <Rocket size={15} aria-hidden /> Launch an app
    </Link>
  );
}

const STEPS: [string, string, string][] = [
  ["Choose an app", "The catalog says what you may launch, why not, and what it costs.", "mooring catalog list"],
  ["Launch it", "The plan beside the form says whether it fits before you launch.", "mooring launch hello --wait"],
  ["Open it", "The page of the workload shows how it comes up, and leads to the app.", "mooring open hello"],
];

/** For a tenant in which nothing was ever launched. */
function FirstSteps() {
  return (
    <Panel title="Three first steps" className="lg:col-span-2">
      <ol className="grid gap-4 p-4 md:grid-cols-3">
        {STEPS.map(([title, text, command], index) => (
          <li key={title} className="min-w-0 space-y-2">
            <p className="font-semibold">
              <span className="mr-2 text-muted tabular-nums">{index + 1}</span>
              {index === 0 ? (
                <Link to="/catalog" className="link">
                  {title}
                </Link>
              ) : (
                title
              )}
            </p>
            <p className="text-muted">{text}</p>
            <CommandLine command={command} />
          </li>
        ))}
      </ol>
    </Panel>
  );
}

const MICRO = 1_000_000;

/** What runs costs per hour, where the month leads, and what is left of the budgets. */
function Spending({ scope }: { scope: Scope }) {
  const found = useQuery(cost(scope, { by: "project", limit: 1 }));
  const limits = useQuery(budgets(scope));
  if (found.error && !found.data) return <ProblemBox error={found.error} retry={() => void found.refetch()} />;
  if (!found.data) return <Skeleton rows={3} />;
  const { forecasts, totals } = found.data;
  return (
    <div className="space-y-4 p-4">
      {forecasts.length === 0 && (
        <p className="text-muted">Nothing was charged this month, and nothing runs that costs.</p>
      )}
      {forecasts.map((each) => {
        const total = totals.find((one) => one.currency === each.currency);
        return (
          <dl key={each.currency} className="grid grid-cols-3 gap-3">
            <Figure label="Per hour now" value={money(each.micro_per_hour / MICRO, each.currency)} />
            <Figure label="This month so far" value={money((total?.total_micro ?? 0) / MICRO, each.currency)} />
            <Figure
              label="Month, if it stays so"
              value={money(each.month_micro / MICRO, each.currency)}
              title={`if ${each.assumes}`}
            />
          </dl>
        );
      })}
      <BudgetBars query={limits} />
    </div>
  );
}

function Figure({ label, value, title }: { label: string; value: string; title?: string }) {
  return (
    <div className="min-w-0" title={title}>
      <dt className="text-xs text-muted">{label}</dt>
      <dd className="text-base font-semibold break-words tabular-nums">{value}</dd>
    </div>
  );
}

interface BudgetBarsProps {
  query: { data?: { items: Schemas["BudgetStandingView"][] }; error: unknown };
}

function BudgetBars({ query }: BudgetBarsProps) {
  if (isProblem(query.error, 403)) return null;
  if (query.error && !query.data) return <ProblemBox error={query.error} />;
  if (!query.data) return null;
  if (query.data.items.length === 0) return <p className="text-xs text-muted">No budget is set.</p>;
  return (
    <ul className="space-y-3">
      {query.data.items.map((each) => {
        const spent = each.measured_minor + each.estimated_minor;
        const percent = (100 * spent) / each.minor_per_month;
        const tone = percent >= 100 ? "fill-bad" : percent >= 80 ? "fill-warn" : "fill-accent";
        return (
          <li key={each.id}>
            <p className="mb-1 flex flex-wrap justify-between gap-2 text-xs">
              <span className="text-muted">{each.project_id ? "Budget of the project" : "Budget of the tenant"}</span>
              <span className="tabular-nums">
                {money(spent, each.currency)} of {money(each.minor_per_month, each.currency)} ({Math.round(percent)} %)
              </span>
            </p>
            <svg viewBox="0 0 100 6" preserveAspectRatio="none" className="h-1.5 w-full" aria-hidden>
              <rect width={100} height={6} className="fill-line" />
              <rect width={Math.min(100, percent)} height={6} className={tone} />
            </svg>
          </li>
        );
      })}
    </ul>
  );
}

function ListLink({ search }: { search: { status?: "running" } }) {
  return (
    <Link to="/workloads" search={search} className="link text-xs">
      All
    </Link>
  );
}

interface RowsProps {
  query: { data?: { items: Instance[] }; error: unknown; isPending: boolean };
  empty: ReactNode;
}

function Rows({ query, empty }: RowsProps) {
  if (query.error) return <ProblemBox error={query.error} />;
  if (!query.data) return <Skeleton rows={3} />;
  if (query.data.items.length === 0) return empty;
  return (
    <ul className="divide-y divide-line">
      {query.data.items.map((each) => (
        <li key={each.id}>
          <Link
            to="/workloads/$id"
            params={{ id: each.id }}
            className="flex flex-wrap items-center gap-x-3 gap-y-1 px-4 py-2.5 hover:bg-sunken"
          >
            <span className="min-w-0 flex-1 truncate font-medium">{each.name}</span>
            <span className="text-xs text-muted">
              {each.app} {each.version}
            </span>
            <Status kind="instance" value={each.status} />
            {each.status === "running" && <Status kind="health" value={each.health} />}
            {(each.failure_detail ?? each.operation?.blocker ?? null) !== null && (
              <span className="w-full truncate text-xs text-muted">
                {each.failure_detail ?? each.operation?.blocker}
              </span>
            )}
          </Link>
        </li>
      ))}
    </ul>
  );
}

function RecentEvents({ scope }: { scope: Scope }) {
  const events = useQuery(recentEvents(scope));
  const meaning = useMeaning();
  if (events.error) return <ProblemBox error={events.error} />;
  if (!events.data) return <Skeleton rows={5} />;
  if (events.data.items.length === 0) return <Empty title="Nothing happened yet" command="mooring events --follow" />;
  const newest = events.data.items.filter(isNews).reverse().slice(0, EVENTS_SHOWN);
  if (newest.length === 0) return <Empty title="Nothing happened lately" command="mooring events --follow" />;
  return (
    <ul className="divide-y divide-line">
      {newest.map((each) => (
        <li key={each.id} className="flex items-center gap-3 px-4 py-2">
          <Clock at={each.occurred_at} />
          <span
            className="min-w-0 flex-1 truncate"
            title={meaning("event", each.type)?.replaceAll("`", "") ?? each.type}
          >
            {sentence(each)}
          </span>
          {each.app_instance_id && (
            <Link to="/workloads/$id" params={{ id: each.app_instance_id }} className="link truncate text-xs">
              {each.app_slug ?? "workload"}
            </Link>
          )}
          <span className="hidden text-xs text-muted sm:inline">
            <Ago at={each.occurred_at} />
          </span>
        </li>
      ))}
    </ul>
  );
}

/** Changes of workloads, each once: tasks are details, and the events of one change say the same. */
function isNews(event: Schemas["EventView"], index: number, all: Schemas["EventView"][]): boolean {
  if (!["instance", "member", "operation"].includes(event.noun)) return false;
  const next = all.slice(index + 1).find((each) => each.subject_id === event.subject_id);
  return next === undefined || sentence(next) !== sentence(event);
}

/** What happened, in a few words: the subject, its state, its health. */
function sentence({ noun, data }: Schemas["EventView"]): string {
  const words = [noun, data.name ?? data.kind ?? data.type, data.status && `is ${data.status}`];
  const text = words.filter(Boolean).join(" ");
  return data.health && data.health !== "unknown" ? `${text} (${data.health})` : text;
}
