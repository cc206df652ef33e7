/** What needs me, what runs, what happened last. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import CircleCheck from "lucide-react/icons/circle-check";
import Rocket from "lucide-react/icons/rocket";
import type { ReactNode } from "react";
import type { Instance, Schemas } from "../api/client";
import type { Scope } from "../api/queries/identity";
import { recentEvents } from "../api/queries/records";
import { useMeaning } from "../api/queries/reference";
import { instances } from "../api/queries/runtime";
import { Status } from "../parts/Status";
import { useScope, useTenant } from "../parts/session";
import { Ago, Clock } from "../parts/time";
import { useTitle } from "../parts/title";
import { Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";

const SHOWN = 8;
const EVENTS_SHOWN = 10;

export function Home() {
  useTitle("Home");
  const tenant = useTenant();
  const scope = useScope();
  const { project } = scope;
  const attention = useQuery(instances(scope.tenant, { attention: true, project, limit: SHOWN }));
  const running = useQuery(instances(scope.tenant, { status: "running", project, limit: SHOWN }));
  if (tenant === null) return <PlatformStaff />;
  const launchLink = (
    <Link to="/catalog" className="link inline-flex items-center gap-1.5">
      <Rocket size={15} aria-hidden /> Launch an app
    </Link>
  );
  return (
    <>
      <PageHead title="Home" sub="What needs you, what runs, and what happened last.">
        {launchLink}
      </PageHead>
      <div className="grid gap-5 lg:grid-cols-2">
        <Panel title="Needs you" aside={<ListLink search={{ attention: true }} />}>
          <Rows
            query={attention}
            empty={
              <div className="flex items-center gap-2 px-4 py-6 text-muted">
                <CircleCheck size={18} className="text-good" aria-hidden /> Nothing needs you.
              </div>
            }
          />
        </Panel>
        <Panel title="Running" aside={<ListLink search={{ status: "running" }} />}>
          <Rows
            query={running}
            empty={
              <Empty title="Nothing runs yet" command="mooring launch hello --open">
                <p>{launchLink}</p>
              </Empty>
            }
          />
        </Panel>
        <Panel title="Recent events" className="lg:col-span-2">
          <RecentEvents scope={scope} />
        </Panel>
      </div>
    </>
  );
}

function ListLink({ search }: { search: { attention?: boolean; status?: "running" } }) {
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

function PlatformStaff() {
  return (
    <>
      <PageHead title="Home" sub="You are signed in as staff of the platform." />
      <Empty title="The workloads belong to the tenants" command="mooring overview get">
        <p>
          Begin with{" "}
          <Link to="/nodes" className="link">
            the machines
          </Link>
          ; the navigation has the other pages of operators.
        </p>
      </Empty>
    </>
  );
}
