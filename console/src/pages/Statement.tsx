/** One statement: what is owed, summed as one likes, every line to the second, and how to export and check it. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { isProblem, type Schemas } from "../api/client";
import { type Statement as StatementData, statement, statementGroups, statementLines } from "../api/queries/money";
import { exactText, microText, monthText, priceText, quantityText, unitText } from "../parts/amount";
import { type Column, DataTable } from "../parts/DataTable";
import { useTenant } from "../parts/session";
import { useTitle } from "../parts/title";
import { CommandLine, CopyButton, Definition, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { STATEMENT_BY } from "../routes/money";
import { CoveredAmount } from "./billing/CostPanels";
import { StatementBadge } from "./billing/StatementBadge";
import { NotFoundBody } from "./NotFound";

type Line = Schemas["StatementLineView"];
type Group = Schemas["StatementGroupView"];

export function Statement() {
  const { id } = useParams({ from: "/shell/billing/statements/$id" });
  const tenant = useTenant();
  const found = useQuery(statement(tenant, id));
  useTitle(found.data ? `Statement of ${monthText(found.data.month.slice(0, 7))}` : "Statement");
  if (isProblem(found.error, 404)) return <NotFoundBody noun="statement" />;
  if (found.error) return <ProblemBox error={found.error} retry={() => void found.refetch()} />;
  if (!found.data) return <Skeleton rows={8} />;
  return <StatementPage key={id} statement={found.data} />;
}

function StatementPage({ statement: mine }: { statement: StatementData }) {
  const month = mine.month.slice(0, 7);
  return (
    <>
      <PageHead
        title={`Statement of ${monthText(month)}`}
        sub={
          <Link to="/billing" search={{ tab: "statements" }} className="link">
            All statements
          </Link>
        }
      />
      <div className="space-y-5">
        {mine.preview && (
          <p role="status" className="rounded-md bg-busy-soft px-4 py-2 text-busy">
            A preview: hours of this month are still being booked, so the figures may change until it is closed.
          </p>
        )}
        <Panel>
          <dl className="grid grid-cols-2 gap-4 p-4 sm:grid-cols-4">
            <Definition label="Amount">
              <span className="text-xl font-semibold tabular-nums">{microText(mine.amount_micro, mine.currency)}</span>
              <span className="block font-mono text-xs text-muted">{exactText(mine.amount_micro, mine.currency)}</span>
            </Definition>
            <Definition label="State">
              <StatementBadge statement={mine} />
            </Definition>
            <Definition label="Covered, already paid by the allocation">
              <CoveredAmount micro={mine.shadow_micro ?? 0} currency={mine.currency} />
            </Definition>
            <Definition label="Lines">
              {mine.line_count?.toLocaleString("en") ?? "counted when it is closed"}
            </Definition>
          </dl>
        </Panel>
        <Breakdown statement={mine} />
        <Lines statement={mine} />
        <div className="grid gap-5 lg:grid-cols-2">
          <Panel title="Export">
            <div className="space-y-2 p-4">
              {["focus", "parquet", "json", "html", "beancount"].map((format) => (
                <CommandLine key={format} command={exportCommand(mine.id, month, format)} />
              ))}
            </div>
          </Panel>
          <Panel title="Chain of digests">
            {mine.digest ? (
              <dl className="space-y-3 p-4">
                <Digest label="Digest of this statement" value={mine.digest} />
                <Digest label="Digest of its lines" value={mine.lines_digest} />
                <Digest label="Digest of the statement before" value={mine.previous_digest} />
              </dl>
            ) : (
              <p className="p-4 text-muted">
                The digests are computed when the month is closed. Each names the one before it, so that no closed
                statement can be changed unseen.
              </p>
            )}
          </Panel>
        </div>
      </div>
    </>
  );
}

const ENDINGS: Record<string, string> = {
  focus: "csv",
  parquet: "parquet",
  json: "json",
  html: "html",
  beancount: "beancount",
};

function exportCommand(id: string, month: string, format: string): string {
  const words = format === "focus" ? "" : ` --format ${format}`;
  return `mooring statements export ${id}${words} --out ${month}.${ENDINGS[format]}`;
}

function Digest({ label, value }: { label: string; value: string | null }) {
  return (
    <Definition label={label}>
      {value ? (
        <span className="flex items-center gap-1 font-mono text-xs">
          <span className="break-all">{value}</span>
          <CopyButton text={value} label={`Copy: ${label}`} />
        </span>
      ) : (
        "none: it is the first"
      )}
    </Definition>
  );
}

const GROUP_COLUMNS: Column<Group>[] = [
  {
    head: "Name",
    narrow: "line",
    cell: (each) => <span className="font-medium">{each.name ?? each.key ?? "other"}</span>,
  },
  { head: "Unit", cell: (each) => unitText(each.unit) },
  { head: "Quantity", isNumber: true, cell: (each) => quantityText(each.quantity_micro, each.unit) },
  {
    head: "Amount",
    isNumber: true,
    cell: (each) =>
      each.billing === "covered" ? (
        <CoveredAmount micro={each.shadow_micro} currency={each.currency} />
      ) : (
        microText(each.amount_micro, each.currency)
      ),
  },
  { head: "Lines", isNumber: true, narrow: "hidden", cell: (each) => each.line_count.toLocaleString("en") },
];

function Breakdown({ statement: mine }: { statement: StatementData }) {
  const search = useSearch({ from: "/shell/billing/statements/$id" });
  const navigate = useNavigate({ from: "/billing/statements/$id" });
  const by = search.by ?? "project";
  const found = useQuery(statementGroups(mine.tenant_id, mine.id, by));
  return (
    <DataTable
      label={`The statement by ${by}`}
      title={`By ${by}`}
      aside={
        <select
          aria-label="Sum by"
          className="field w-auto py-1 text-xs"
          value={by}
          onChange={(event) =>
            void navigate({
              search: (before) => ({ ...before, by: STATEMENT_BY.find((each) => each === event.target.value) }),
            })
          }
        >
          {STATEMENT_BY.map((each) => (
            <option key={each} value={each}>
              by {each}
            </option>
          ))}
        </select>
      }
      columns={GROUP_COLUMNS}
      query={found}
      rowKey={(each) => `${each.key} ${each.unit} ${each.billing}`}
      empty={<p className="px-4 py-6 text-muted">It has no lines.</p>}
    />
  );
}

const seconds = (at: string): string => at.slice(0, 19).replace("T", " ");

const LINE_COLUMNS: Column<Line>[] = [
  {
    head: "What",
    narrow: "line",
    cell: (each) => (
      <>
        <span className="font-medium">
          {each.instance_name ?? each.allocation_name ?? each.app_slug ?? each.source}
        </span>
        {each.correction && <span className="ml-2 rounded-full bg-warn-soft px-2 text-xs text-warn">correction</span>}
        <span className="block text-xs text-muted">
          {each.project_slug}
          {each.sku_slug && ` · ${each.sku_slug}`}
          {each.gpu_count !== null && ` · ${each.gpu_count} × ${each.gpu_model ?? "GPU"}`}
        </span>
      </>
    ),
  },
  {
    head: "From, until (UTC)",
    cell: (each) => (
      <span className="font-mono text-xs whitespace-nowrap">
        {seconds(each.started_at)}
        <br className="max-md:hidden" />
        <span className="md:hidden"> – </span>
        {seconds(each.ended_at)}
      </span>
    ),
  },
  { head: "Quantity", isNumber: true, cell: (each) => <Quantity line={each} /> },
  {
    head: "Price",
    cell: (each) =>
      each.price_minor !== null && each.price_per !== null && each.currency !== null
        ? each.price_is_flat
          ? priceText(each.price_minor, each.price_per, each.unit, each.currency)
          : "in tiers"
        : "none",
  },
  {
    head: "Amount",
    isNumber: true,
    cell: (each) =>
      each.billing === "covered" ? (
        <CoveredAmount micro={each.shadow_micro} currency={each.currency} />
      ) : (
        <span title={exactText(each.amount_micro, each.currency)}>{microText(each.amount_micro, each.currency)}</span>
      ),
  },
];

function Quantity({ line }: { line: Line }) {
  const exact =
    line.unit === "gpu_second" ? `${(line.quantity_micro / 1_000_000).toLocaleString("en")} GPU-seconds` : "";
  return (
    <>
      {quantityText(line.quantity_micro, line.unit)}
      {exact && <span className="block text-xs text-muted">{exact}</span>}
    </>
  );
}

function Lines({ statement: mine }: { statement: StatementData }) {
  const search = useSearch({ from: "/shell/billing/statements/$id" });
  const navigate = useNavigate({ from: "/billing/statements/$id" });
  const found = useQuery(statementLines(mine.tenant_id, mine.id, search.cursor));
  return (
    <DataTable
      label="Lines of the statement"
      title="Lines"
      columns={LINE_COLUMNS}
      query={found}
      rowKey={(each) => each.id}
      empty={<p className="px-4 py-6 text-muted">It has no lines.</p>}
      pages={{
        cursor: search.cursor,
        go: (cursor) => void navigate({ search: (before) => ({ ...before, cursor }) }),
      }}
    />
  );
}
