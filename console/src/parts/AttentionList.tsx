/** What needs somebody: how urgent, what, why, since when, and the next step. */
import { Link } from "@tanstack/react-router";
import CircleAlert from "lucide-react/icons/circle-alert";
import CircleCheck from "lucide-react/icons/circle-check";
import Info from "lucide-react/icons/info";
import AlertTriangle from "lucide-react/icons/triangle-alert";
import type { Schemas } from "../api/client";
import { Ago } from "./time";
import { CopyButton, ProblemBox, Skeleton } from "./ui";

type Item = Schemas["AttentionItemView"];

const LOOK = {
  critical: { icon: CircleAlert, tone: "text-bad" },
  warning: { icon: AlertTriangle, tone: "text-warn" },
  notice: { icon: Info, tone: "text-busy" },
} as const;

const WHO: Record<string, string> = {
  you: "You",
  operator: "An operator",
  project_admin: "A project admin",
  app_team: "The app's team",
  nobody: "Nobody",
};

interface AttentionListProps {
  query: { data?: { items: Item[]; next_cursor?: string | null }; error: unknown; refetch: () => unknown };
  /** What is said when nothing needs anybody. */
  clear: string;
}

export function AttentionList({ query, clear }: AttentionListProps) {
  if (query.error && !query.data) return <ProblemBox error={query.error} retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton rows={3} />;
  if (query.data.items.length === 0)
    return (
      <p className="flex items-center gap-2 px-4 py-6 text-muted">
        <CircleCheck size={18} className="text-good" aria-hidden /> {clear}
      </p>
    );
  return (
    <>
      <ul className="divide-y divide-line">
        {query.data.items.map((each) => (
          <AttentionRow key={each.id} item={each} />
        ))}
      </ul>
      {query.data.next_cursor && (
        <p className="border-t border-line px-4 py-2 text-xs text-muted">
          There is more. <code className="font-mono">mooring attention</code> lists all of it.
        </p>
      )}
    </>
  );
}

function AttentionRow({ item }: { item: Item }) {
  const { icon: Icon, tone } = LOOK[item.severity];
  const step = item.next_step;
  return (
    <li className="flex gap-3 px-4 py-3">
      <Icon size={17} className={`mt-0.5 shrink-0 ${tone}`} aria-hidden />
      <div className="min-w-0 flex-1 space-y-1">
        <div className="flex flex-wrap items-baseline gap-x-2">
          <span className={`text-xs font-semibold ${tone}`}>{item.severity}</span>
          <Subject item={item} />
          <span className="text-xs text-muted">{item.kind.replaceAll("_", " ")}</span>
          <span className="ml-auto text-xs text-muted">
            <Ago at={item.since} />
          </span>
        </div>
        <p className="break-words">{item.cause}</p>
        <p className="text-xs break-words text-muted">
          {step.who === "you" && item.tenant_id && item.subject_name === null
            ? "The tenant"
            : (WHO[step.who] ?? step.who)}
          : {step.what}
        </p>
        {step.command && (
          <p className="flex items-center gap-1 font-mono text-xs text-muted">
            <span className="min-w-0 break-all">{step.command}</span>
            <CopyButton text={step.command} label="Copy the command" />
          </p>
        )}
      </div>
    </li>
  );
}

/** A link where the console has a page for it; what belongs to a tenant has no name for staff. */
function Subject({ item }: { item: Item }) {
  // A budget of the whole tenant has an empty name.
  const name = item.subject_name || `${item.subject_noun.replaceAll("_", " ")} ${item.subject_id}`;
  const instance = item.subject_noun === "instance" ? item.subject_id : item.instance_id;
  if (instance && item.subject_name !== null)
    return (
      <Link
        to="/workloads/$id"
        params={{ id: instance }}
        search={item.subject_noun === "operation" ? { tab: "operations" } : {}}
        className="link min-w-0 truncate"
      >
        {name}
      </Link>
    );
  const params = { id: item.subject_id };
  const look = "link min-w-0 break-all";
  if (item.subject_noun === "node")
    return (
      <Link to="/nodes/$id" params={params} className={look}>
        {name}
      </Link>
    );
  if (item.subject_noun === "allocation" && item.subject_name !== null)
    return (
      <Link to="/allocations/$id" params={params} className={look}>
        {name}
      </Link>
    );
  if (item.subject_noun === "webhook")
    return (
      <Link to="/webhooks" className={look}>
        {name}
      </Link>
    );
  return <span className="min-w-0 font-semibold break-all">{name}</span>;
}
