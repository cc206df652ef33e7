/** Limits on spending: the balance of a tenant that pays in advance, budgets with thresholds, quotas. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import type { Scope } from "../../api/queries/identity";
import { type Budget, balance, budgets, payments, quota } from "../../api/queries/money";
import { minorText } from "../../parts/amount";
import { DataTable } from "../../parts/DataTable";
import { useMissing } from "../../parts/moneyScope";
import { useProject, useTenant } from "../../parts/session";
import { Ago } from "../../parts/time";
import { Button, Definition, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { BudgetDialog } from "./BudgetDialog";
import { QuotaDialog } from "./QuotaDialog";

export function Budgets({ scope }: { scope: Scope & { isWide: boolean } }) {
  const found = useQuery(budgets(scope));
  const { projects } = useProject(scope.project);
  const [edited, setEdited] = useState<Budget | "new" | null>(null);
  const missing = useMissing("billing.budget.update", scope.project);
  const slugs = new Map(projects.map((each) => [each.id, each.slug]));
  return (
    <div className="space-y-5">
      {scope.isWide && <BalancePanel />}
      <Panel
        title="Budgets of this month"
        aside={
          <Button onClick={() => setEdited("new")} disabledReason={missing}>
            Set a budget
          </Button>
        }
      >
        {found.error ? (
          <ProblemBox error={found.error} retry={() => void found.refetch()} />
        ) : !found.data ? (
          <Skeleton />
        ) : found.data.items.length === 0 ? (
          <Empty
            title="There is no budget"
            command={
              'mooring budgets update --currency EUR --minor-per-month 50000 --thresholds \'[{"percent":80,"action":"notify"}]\' --reason "the plan of this quarter"'
            }
          >
            A budget says what a month may cost. Its thresholds notify, refuse new launches, or stop what runs.
          </Empty>
        ) : (
          <ul className="divide-y divide-line">
            {found.data.items.map((each) => (
              <BudgetRow
                key={each.id}
                budget={each}
                name={each.project_id === null ? "The whole tenant" : (slugs.get(each.project_id) ?? each.project_id)}
                edit={() => setEdited(each)}
                missing={missing}
              />
            ))}
          </ul>
        )}
      </Panel>
      <QuotaPanel scope={scope} />
      {edited !== null && (
        <BudgetDialog
          before={edited === "new" ? undefined : edited}
          scope={edited === "new" || edited.project_id === null ? scope : { ...scope, project: edited.project_id }}
          close={() => setEdited(null)}
        />
      )}
    </div>
  );
}

interface BudgetRowProps {
  budget: Budget;
  name: string;
  edit: () => void;
  missing: string | undefined;
}

function BudgetRow({ budget, name, edit, missing }: BudgetRowProps) {
  const amount = (minor: number) => minorText(minor, budget.currency);
  const spent = budget.measured_minor + budget.estimated_minor;
  return (
    <li className="space-y-3 px-4 py-4">
      <div className="flex flex-wrap items-center justify-between gap-2">
        <p>
          <span className="font-semibold">{name}</span>{" "}
          <span className="text-muted">{amount(budget.minor_per_month)} a month</span>
        </p>
        <Button onClick={edit} disabledReason={missing}>
          Change
        </Button>
      </div>
      <BudgetBar budget={budget} />
      <dl className="grid grid-cols-2 gap-3 sm:grid-cols-4">
        <Definition label="Booked">{amount(budget.measured_minor)}</Definition>
        <Definition label="Estimated, not booked yet">{amount(budget.estimated_minor)}</Definition>
        <Definition label="Reserved by launches">{amount(budget.held_minor)}</Definition>
        <Definition label="Left">{amount(budget.left_minor)}</Definition>
      </dl>
      <ul className="flex flex-wrap gap-2 text-xs">
        {budget.thresholds.map((each) => {
          const fired = budget.crossed.includes(each.percent);
          return (
            <li
              key={each.percent}
              className={`rounded-full px-2.5 py-0.5 ${fired ? "bg-warn-soft text-warn" : "bg-sunken text-muted"}`}
            >
              {each.percent} %: {each.action}
              {fired ? ", fired" : `, in ${amount(Math.max(0, (budget.minor_per_month * each.percent) / 100 - spent))}`}
            </li>
          );
        })}
      </ul>
    </li>
  );
}

const WIDTH = 1_000;

/** Booked, estimated and reserved beside each other, with a mark for each threshold. */
function BudgetBar({ budget }: { budget: Budget }) {
  const whole = Math.max(
    budget.minor_per_month,
    budget.measured_minor + budget.estimated_minor + budget.held_minor,
    ...budget.thresholds.map((each) => (budget.minor_per_month * each.percent) / 100),
  );
  const at = (minor: number) => (minor / whole) * WIDTH;
  const measured = at(budget.measured_minor);
  const estimated = at(budget.estimated_minor);
  const used = Math.round(((budget.measured_minor + budget.estimated_minor) / budget.minor_per_month) * 100);
  return (
    <svg
      viewBox={`0 0 ${WIDTH} 14`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`${used} percent of the budget is spent`}
      className="h-3.5 w-full"
    >
      <rect y={2} width={WIDTH} height={10} rx={2} className="fill-sunken" />
      <rect y={2} width={measured} height={10} className="fill-accent" />
      <rect y={2} x={measured} width={estimated} height={10} className="fill-accent" opacity={0.45} />
      <rect
        y={2}
        x={measured + estimated}
        width={at(budget.held_minor)}
        height={10}
        className="fill-busy"
        opacity={0.35}
      />
      {budget.thresholds.map((each) => (
        <rect
          key={each.percent}
          x={Math.min(WIDTH - 3, at((budget.minor_per_month * each.percent) / 100))}
          width={3}
          height={14}
          className="fill-ink"
        />
      ))}
    </svg>
  );
}

function BalancePanel() {
  const tenant = useTenant();
  const found = useQuery(balance(tenant));
  const paid = useQuery(payments(tenant));
  if (found.error) return <ProblemBox error={found.error} retry={() => void found.refetch()} />;
  if (!found.data) return <Skeleton rows={3} />;
  const { currency, ...amounts } = found.data;
  if (!found.data.prepaid || currency === null)
    return (
      <Panel title="Balance">
        <p className="px-4 py-4 text-muted">
          The tenant pays by monthly statement, so no balance limits it. The platform's staff can let it pay in advance.
        </p>
      </Panel>
    );
  const amount = (minor: number) => minorText(minor, currency);
  return (
    <>
      <Panel title="Balance, paid in advance">
        <div className="space-y-4 p-4">
          <p className="text-2xl font-semibold tabular-nums">
            {amount(amounts.available_minor)} <span className="text-sm font-normal text-muted">available</span>
          </p>
          {amounts.level && (
            <p role="status" className="rounded-md bg-warn-soft p-3 text-warn">
              {amounts.level === "depleted"
                ? "The balance is used up: everything of the tenant is stopped and released. A payment makes launches possible again."
                : `The balance is low: below ${amount(amounts.low_minor ?? 0)}. At zero everything is stopped and released.`}
            </p>
          )}
          <dl className="grid grid-cols-2 gap-3 sm:grid-cols-4">
            <Definition label="Paid">{amount(amounts.paid_minor)}</Definition>
            <Definition label="Booked">{amount(amounts.charged_minor)}</Definition>
            <Definition label="Estimated, not booked yet">{amount(amounts.estimated_minor)}</Definition>
            <Definition label="Reserved by launches">{amount(amounts.held_minor)}</Definition>
          </dl>
        </div>
      </Panel>
      <DataTable
        label="Payments"
        title="Payments and credits"
        columns={[
          { head: "Reference", narrow: "line", cell: (each: Schemas["PaymentView"]) => each.reference },
          { head: "Kind", cell: (each) => each.kind },
          { head: "Amount", isNumber: true, cell: (each) => minorText(each.minor, each.currency) },
          { head: "Booked", cell: (each) => <Ago at={each.created_at} /> },
        ]}
        query={paid}
        rowKey={(each) => each.id}
        empty={<Empty title="No payment was booked" command="mooring payments list" />}
      />
    </>
  );
}

function QuotaPanel({ scope }: { scope: Scope }) {
  const queries = useQueryClient();
  const found = useQuery(quota(scope));
  const [isOpen, setOpen] = useState(false);
  const missing = useMissing("billing.quota.update", scope.project);
  const limits = found.data;
  const shown = (value: number | null | undefined) => (value == null ? "not limited" : value.toLocaleString("en"));
  return (
    <Panel
      title={scope.project === undefined ? "Quota of the tenant" : "Quota of the project"}
      aside={
        scope.project !== undefined && (
          <Button onClick={() => setOpen(true)} disabledReason={missing}>
            Change
          </Button>
        )
      }
    >
      {found.error ? (
        <ProblemBox error={found.error} retry={() => void found.refetch()} />
      ) : !limits ? (
        <Skeleton rows={2} />
      ) : (
        <>
          <dl className="grid grid-cols-1 gap-3 p-4 sm:grid-cols-3">
            <Definition label="GPUs at once">{shown(limits.gpus_max)}</Definition>
            <Definition label="Instances that are not stopped">{shown(limits.instances_max)}</Definition>
            <Definition label="Spending per hour">
              {limits.minor_per_hour_max === null || limits.currency === null
                ? "not limited"
                : minorText(limits.minor_per_hour_max, limits.currency)}
            </Definition>
          </dl>
          <p className="px-4 pb-4 text-xs text-muted">
            A launch that would exceed a limit is refused in its plan, with the smallest change that helps.
            {scope.project === undefined && " The platform's staff sets the quota of a tenant."}
          </p>
        </>
      )}
      {isOpen && limits && scope.project !== undefined && (
        <QuotaDialog
          before={limits}
          close={() => setOpen(false)}
          save={async (body, key) => {
            await answer(
              api.PUT("/api/v1/projects/{project_id}/quotas", {
                params: { path: { project_id: scope.project ?? "" }, header: { "Idempotency-Key": key } },
                body,
              }),
            );
            await queries.invalidateQueries({ queryKey: ["quota"] });
          }}
        />
      )}
    </Panel>
  );
}
