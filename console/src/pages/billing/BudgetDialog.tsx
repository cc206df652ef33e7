/** The editor of a budget: what a month may cost, and what happens at which share of it. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import type { Scope } from "../../api/queries/identity";
import type { Budget } from "../../api/queries/money";
import { minorText, minorToText, toMinor } from "../../parts/amount";
import { ActionDialog } from "../../parts/Dialog";
import { Field } from "../../parts/Field";
import { Button } from "../../parts/ui";

type Action = Schemas["ThresholdAction"];
const ACTIONS: readonly Action[] = ["notify", "block", "stop"];
const MEANING: Record<Action, string> = {
  notify: "sends an event",
  block: "also refuses new launches",
  stop: "also stops what runs, with receipts",
};
const FIRST = [
  { percent: 80, action: "notify" as const },
  { percent: 100, action: "block" as const },
];
const THRESHOLDS_MAX = 10;

interface BudgetDialogProps {
  before: Budget | undefined;
  scope: Scope;
  close: () => void;
}

export function BudgetDialog({ before, scope, close }: BudgetDialogProps) {
  const queries = useQueryClient();
  const [currency, setCurrency] = useState(before?.currency ?? "EUR");
  const [amount, setAmount] = useState(before ? minorToText(before.minor_per_month, before.currency) : "");
  const [thresholds, setThresholds] = useState(before?.thresholds ?? FIRST);
  const [reason, setReason] = useState("");
  const minor = toMinor(amount, currency);
  const spent = before ? before.measured_minor + before.estimated_minor : undefined;
  const place = scope.project === undefined ? "" : ` --project ${scope.project}`;
  const change = (index: number, part: Partial<{ percent: number; action: Action }>) =>
    setThresholds(thresholds.map((each, at) => (at === index ? { ...each, ...part } : each)));
  return (
    <ActionDialog
      title={before ? "Change the budget" : "Set a budget"}
      confirm="Save"
      command={`mooring budgets update${place} --currency ${currency} --minor-per-month ${minor ?? 0} --thresholds '${JSON.stringify(thresholds)}' --reason "${reason}"`}
      close={close}
      act={async (key) => {
        const header = { "Idempotency-Key": key };
        const body = { currency, minor_per_month: minor ?? 0, thresholds, reason, revision: before?.revision };
        await (scope.project === undefined
          ? answer(
              api.PUT("/api/v1/tenants/{tenant_id}/budgets", {
                params: { path: { tenant_id: scope.tenant ?? "" }, header },
                body,
              }),
            )
          : answer(
              api.PUT("/api/v1/projects/{project_id}/budgets", {
                params: { path: { project_id: scope.project }, header },
                body,
              }),
            ));
        await queries.invalidateQueries({ queryKey: ["budgets"] });
      }}
    >
      <p className="text-muted">
        {scope.project === undefined
          ? "It holds for the whole tenant."
          : "It holds for this project, and is at most the tenant's."}
      </p>
      <div className="grid grid-cols-[1fr_7rem] gap-3">
        <Field
          label="Amount a month"
          inputMode="decimal"
          required
          value={amount}
          onChange={setAmount}
          placeholder="500.00"
        />
        <Field
          label="Currency"
          required
          maxLength={3}
          value={currency}
          onChange={(text) => setCurrency(text.toUpperCase())}
        />
      </div>
      <fieldset className="space-y-2">
        <legend className="font-medium">Thresholds</legend>
        {thresholds.map((each, index) => (
          <div key={index} className="flex flex-wrap items-center gap-2">
            <input
              type="number"
              min={1}
              max={1000}
              aria-label={`Threshold ${index + 1}, percent`}
              className="field w-20"
              value={each.percent}
              onChange={(event) => change(index, { percent: Number(event.target.value) })}
            />
            %
            <select
              aria-label={`Threshold ${index + 1}, action`}
              className="field w-auto"
              value={each.action}
              onChange={(event) =>
                change(index, { action: ACTIONS.find((word) => word === event.target.value) ?? "notify" })
              }
            >
              {ACTIONS.map((action) => (
                <option key={action} value={action}>
                  {action}: {MEANING[action]}
                </option>
              ))}
            </select>
            {thresholds.length > 1 && (
              <Button look="ghost" onClick={() => setThresholds(thresholds.filter((_, at) => at !== index))}>
                Remove
              </Button>
            )}
            {minor !== null && (
              <span
                className={`text-xs ${spent !== undefined && spent * 100 >= minor * each.percent ? "text-warn" : "text-muted"}`}
              >
                at {minorText((minor * each.percent) / 100, currency)}
                {spent !== undefined && spent * 100 >= minor * each.percent && ": crossed at once"}
              </span>
            )}
          </div>
        ))}
        {thresholds.length < THRESHOLDS_MAX && (
          <Button onClick={() => setThresholds([...thresholds, { percent: 100, action: "notify" }])}>
            Add a threshold
          </Button>
        )}
      </fieldset>
      <Field
        label="Reason"
        required
        minLength={10}
        maxLength={1000}
        value={reason}
        onChange={setReason}
        help="It is stored in the audit trail; at least 10 characters."
      />
    </ActionDialog>
  );
}
