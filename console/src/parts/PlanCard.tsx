/** What a launch would do: fit, price, version, expected time, and every refusal that it would meet. */
import CircleCheck from "lucide-react/icons/circle-check";
import CircleX from "lucide-react/icons/circle-x";
import Hourglass from "lucide-react/icons/hourglass";
import type { ReactNode } from "react";
import { isProblem, type Plan } from "../api/client";
import { duration, money } from "./time";
import { Button, Definition, Panel, ProblemBox } from "./ui";

interface PlanCardProps {
  plan: Plan | undefined;
  error: unknown;
  waiting: boolean;
  /** The same as a command and as a request. */
  same: ReactNode;
  /** What the form asks for each member. */
  chosen: Choice | undefined;
  use: (choice: Choice) => void;
  action: ReactNode;
  failure: unknown;
}

export function PlanCard({ plan, error, waiting, same, chosen, use, action, failure }: PlanCardProps) {
  return (
    <Panel
      title="Plan"
      className="lg:sticky lg:top-6"
      aside={waiting && <span className="text-xs text-muted">planning…</span>}
    >
      <div className="space-y-4 p-4" aria-busy={waiting}>
        <div aria-live="polite" className="space-y-4">
          {isProblem(error, 422) ? (
            <>
              <Verdict text="The form is not complete" />
              <p className="break-words">{error.detail}</p>
            </>
          ) : error ? (
            <ProblemBox error={error} />
          ) : plan ? (
            <PlanBody plan={plan} chosen={chosen} use={use} />
          ) : (
            <p className="text-muted">Planning…</p>
          )}
        </div>
        {failure !== null && failure !== undefined && <ProblemBox error={failure} />}
        {action}
        {same}
      </div>
    </Panel>
  );
}

function PlanBody({ plan, chosen, use }: { plan: Plan; chosen: Choice | undefined; use: (choice: Choice) => void }) {
  const members = Object.values(plan.topology).reduce((sum, each) => sum + each, 0);
  return (
    <>
      {plan.launchable ? (
        <Verdict
          good
          text={
            plan.placement && !plan.placement.fits_now ? "It can be launched, and waits for capacity" : "It fits now"
          }
        />
      ) : (
        <Verdict text="It cannot be launched like this" />
      )}
      {plan.hindrances.length > 0 && (
        <ul className="space-y-2 rounded-md bg-bad-soft p-3 text-xs">
          {plan.hindrances.map((each) => (
            <li key={`${each.code} ${each.detail}`} className="break-words">
              {each.detail}
            </li>
          ))}
        </ul>
      )}
      {plan.launchable && plan.placement && !plan.placement.fits_now && (
        <p className="rounded-md bg-warn-soft p-3 text-xs text-warn">
          {plan.placement.because}
          {plan.placement.smallest_change && `; what would help: ${plan.placement.smallest_change}`}
        </p>
      )}
      <SmallestChange plan={plan} chosen={chosen} use={use} />
      {plan.adapter && !plan.adapter.listening && (
        <p className="flex gap-1.5 rounded-md bg-warn-soft p-3 text-xs text-warn">
          <Hourglass size={14} className="shrink-0" aria-hidden />
          No adapter of this app asks for work in the project; the launch would wait for one.
        </p>
      )}
      <dl className="grid grid-cols-2 gap-3">
        <Definition label="Price per hour">
          {plan.price.length === 0
            ? "none"
            : plan.price.map((each) => money(each.added_minor_per_hour, each.currency)).join(" + ")}
        </Definition>
        <Definition label="Price per day">
          {plan.price.length === 0
            ? "none"
            : plan.price.map((each) => money(each.added_minor_per_hour * 24, each.currency)).join(" + ")}
        </Definition>
        <Definition label="Members">
          {members}
          {plan.new_allocations > 0 && `, ${counted(plan.new_allocations, "new allocation")}`}
        </Definition>
        <Definition label="Version">
          {plan.version ? `${plan.version.version} (${plan.version.promotion})` : "none"}
          {plan.version?.canary && <span className="block text-xs text-warn">a canary: few run it so far</span>}
        </Definition>
        <Definition label="Ready after">
          {plan.expected.seconds == null
            ? "not measured yet"
            : `about ${duration(plan.expected.seconds * 1_000)}, from ${counted(plan.expected.samples, "launch", "launches")}`}
        </Definition>
        {plan.policy.layer && (
          <Definition label="Policy">
            {plan.policy.allowed ? "allowed" : "denied"} by the {plan.policy.layer} layer
            {plan.policy.reason && <span className="block text-xs text-muted">{plan.policy.reason}</span>}
          </Definition>
        )}
      </dl>
      <Limits plan={plan} />
      {plan.expected.stages.length > 0 && (
        <details>
          <summary className="text-xs text-muted">Time by stage</summary>
          <ul className="mt-2 space-y-1 text-xs">
            {plan.expected.stages.map((each) => (
              <li key={each.name} className="flex justify-between gap-3">
                <span>{each.name.replaceAll("_", " ")}</span>
                <span className="tabular-nums">{duration(each.seconds * 1_000)}</span>
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

/** A machine and a number of GPUs that would do. */
export interface Choice {
  sku: string;
  gpu_count: number;
}

const PRESETS_MAX = 8;

interface PresetsProps {
  plan: Plan | undefined;
  sku: string | undefined;
  gpus: number | undefined;
  use: (choice: Choice) => void;
}

/** The capacities that are sold, with the price of all members and whether they fit idle machines; a click sets both fields. */
export function Presets({ plan, sku, gpus, use }: PresetsProps) {
  const shapes = plan?.shapes.filter((each) => each.available).slice(0, PRESETS_MAX) ?? [];
  if (shapes.length < 2) return null;
  return (
    <div className="flex flex-wrap gap-2 border-b border-line p-4">
      {shapes.map((each) => (
        <button
          key={`${each.sku} ${each.gpu_count}`}
          type="button"
          aria-pressed={each.sku === sku && each.gpu_count === gpus}
          title={each.because}
          onClick={() => use(each)}
          className={`rounded-md border px-3 py-1.5 text-left text-xs ${
            each.sku === sku && each.gpu_count === gpus ? "border-accent bg-accent-soft" : "border-line hover:bg-sunken"
          }`}
        >
          <span className="block font-medium">
            {each.gpu_count} × {each.gpu_model}
          </span>
          <span className="block text-muted">
            {each.sku}, {money(each.price_minor_per_hour, each.currency)}/h
          </span>
          <span className={`block ${each.fits ? "text-good" : "text-warn"}`}>
            {each.fits ? "fits" : "does not fit"}
          </span>
        </button>
      ))}
    </div>
  );
}

interface SmallestChangeProps {
  plan: Plan;
  chosen: Choice | undefined;
  use: (choice: Choice) => void;
}

/** Where the choice of the form fits no machine: the largest that does, as a button that takes it. */
function SmallestChange({ plan, chosen, use }: SmallestChangeProps) {
  const own = plan.shapes.find((each) => each.sku === chosen?.sku && each.gpu_count === chosen.gpu_count);
  const [fitting] = plan.shapes
    .filter((each) => each.fits)
    .sort(
      (one, other) => Number(other.sku === own?.sku) - Number(one.sku === own?.sku) || other.gpu_count - one.gpu_count,
    );
  if (!own || own.fits || !fitting) return null;
  return (
    <Button onClick={() => use(fitting)} className="w-full">
      Take {fitting.gpu_count} × {fitting.sku}, which fits
    </Button>
  );
}

const LIMIT: Record<string, string> = {
  balance: "Balance",
  budget: "Budget of the month",
  spend_per_hour: "Spend per hour",
  gpus: "GPUs",
  instances: "Workloads",
};

/** What is left of each limit after this launch. */
function Limits({ plan }: { plan: Plan }) {
  if (plan.limits.length === 0) return null;
  return (
    <ul className="space-y-1 border-t border-line pt-3 text-xs">
      {plan.limits.map((each) => {
        const amount = (value: number) => (each.currency ? money(value, each.currency) : String(value));
        return (
          <li key={`${each.kind} ${each.scope}`} className="flex flex-wrap justify-between gap-x-3">
            <span>
              {LIMIT[each.kind] ?? each.kind} of the {each.scope}
            </span>
            <span className={`tabular-nums ${each.exceeded ? "font-semibold text-bad" : ""}`}>
              {amount(each.left)} left of {amount(each.maximum)}
            </span>
          </li>
        );
      })}
    </ul>
  );
}

function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

function Verdict({ good, text }: { good?: boolean; text: string }) {
  const Icon = good ? CircleCheck : CircleX;
  return (
    <p className={`flex items-center gap-2 font-semibold ${good ? "text-good" : "text-bad"}`}>
      <Icon size={18} aria-hidden /> {text}
    </p>
  );
}
