/** What a launch would do: fit, price, version, expected time, and every refusal that it would meet. */
import CircleCheck from "lucide-react/icons/circle-check";
import CircleX from "lucide-react/icons/circle-x";
import Hourglass from "lucide-react/icons/hourglass";
import type { ReactNode } from "react";
import { isProblem, type Plan } from "../api/client";
import { duration, money } from "./time";
import { CommandLine, Definition, Panel, ProblemBox } from "./ui";

interface PlanCardProps {
  plan: Plan | undefined;
  error: unknown;
  waiting: boolean;
  command: string;
  action: ReactNode;
  failure: unknown;
}

export function PlanCard({ plan, error, waiting, command, action, failure }: PlanCardProps) {
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
            <PlanBody plan={plan} />
          ) : (
            <p className="text-muted">Planning…</p>
          )}
        </div>
        {failure !== null && failure !== undefined && <ProblemBox error={failure} />}
        {action}
        <details>
          <summary className="text-xs text-muted">The same from the command line</summary>
          <div className="mt-2">
            <CommandLine command={command} />
          </div>
        </details>
      </div>
    </Panel>
  );
}

function PlanBody({ plan }: { plan: Plan }) {
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
        <Definition label="Members">
          {members}
          {plan.new_allocations > 0 && `, ${counted(plan.new_allocations, "new allocation")}`}
        </Definition>
        <Definition label="Version">
          {plan.version ? `${plan.version.version} (${plan.version.promotion})` : "none"}
        </Definition>
        <Definition label="Ready after">
          {plan.expected.seconds == null
            ? "not measured yet"
            : `about ${duration(plan.expected.seconds * 1_000)}, from ${counted(plan.expected.samples, "launch", "launches")}`}
        </Definition>
        {plan.policy.layer && (
          <Definition label="Policy">
            {plan.policy.allowed ? "allowed" : "denied"} by the {plan.policy.layer} layer
          </Definition>
        )}
      </dl>
    </>
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
