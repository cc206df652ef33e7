/** The proof of the ledger: every law with how much it checked, read step by step, and the first counterexample. */
import { useQueryClient } from "@tanstack/react-query";
import CircleCheck from "lucide-react/icons/circle-check";
import CircleX from "lucide-react/icons/circle-x";
import { useRef, useState } from "react";
import type { Schemas } from "../../api/client";
import { proofStep } from "../../api/queries/money";
import { announce } from "../../parts/announcer";
import { useMissing } from "../../parts/moneyScope";
import { Button, CommandLine, Panel, ProblemBox } from "../../parts/ui";

type Law = Schemas["ProvenLawView"];
type State = "idle" | "proving" | "done" | "stopped";

const numbers = new Intl.NumberFormat("en");

export function Prove({ tenantId, isWide }: { tenantId: string | null; isWide: boolean }) {
  const queries = useQueryClient();
  const missing = useMissing("billing.prove");
  const [laws, setLaws] = useState<Law[]>([]);
  const [state, setState] = useState<State>("idle");
  const [error, setError] = useState<unknown>(null);
  const [steps, setSteps] = useState(0);
  const stop = useRef(false);

  const prove = async () => {
    stop.current = false;
    setLaws([]);
    setError(null);
    setSteps(0);
    setState("proving");
    const sums = new Map<string, Law>();
    let cursor: string | undefined;
    try {
      do {
        const page = await queries.fetchQuery({
          queryKey: ["proof", tenantId, cursor],
          queryFn: () => proofStep(tenantId, cursor),
          staleTime: 0,
          retry: false,
        });
        for (const each of page.items) sums.set(each.law, added(sums.get(each.law), each));
        setLaws([...sums.values()]);
        setSteps((before) => before + 1);
        cursor = page.next_cursor ?? undefined;
      } while (cursor && !stop.current);
      setState(cursor ? "stopped" : "done");
      announce(cursor ? "The proof was stopped" : "The proof is complete");
    } catch (failure) {
      setError(failure);
      setState("stopped");
    }
  };

  const broken = laws.filter((each) => each.broken > 0);
  return (
    <div className="space-y-5">
      <Panel className="space-y-3 p-4">
        <p>
          The proof recomputes the ledger from the log of the lifecycle and the stored usage, and compares it with what
          was booked. It reads only.
        </p>
        <div className="flex flex-wrap items-center gap-3">
          <Button
            look="primary"
            onClick={() => void prove()}
            disabled={state === "proving"}
            disabledReason={isWide || tenantId === null ? missing : "only the whole tenant's ledger can be proven"}
          >
            {state === "proving" ? "Proving…" : state === "idle" ? "Prove" : "Prove again"}
          </Button>
          {state === "proving" && (
            <Button
              onClick={() => {
                stop.current = true;
              }}
            >
              Stop
            </Button>
          )}
          <p role="status" className="text-muted">
            {state === "proving" && `${steps} steps, ${laws.length} laws so far`}
            {state === "stopped" && error === null && `Stopped after ${steps} steps: what was not read is not proven.`}
          </p>
        </div>
        <CommandLine command={tenantId === null ? "mooring billing prove --platform" : "mooring billing prove"} />
      </Panel>
      {error !== null && <ProblemBox error={error} />}
      {state === "done" && (
        <p
          role="status"
          className={`flex items-center gap-2 rounded-lg p-4 font-semibold ${broken.length === 0 ? "bg-good-soft text-good" : "bg-bad-soft text-bad"}`}
        >
          {broken.length === 0 ? <CircleCheck size={18} aria-hidden /> : <CircleX size={18} aria-hidden />}
          {broken.length === 0
            ? `All ${laws.length} laws hold.`
            : `${broken.length} of ${laws.length} laws are broken: ${broken.map((each) => each.law).join(", ")}.`}
        </p>
      )}
      {laws.length > 0 && (
        <Panel title="Laws">
          <ul className="divide-y divide-line">
            {[...broken, ...laws.filter((each) => each.broken === 0)].map((each) => (
              <LawRow key={each.law} law={each} />
            ))}
          </ul>
        </Panel>
      )}
    </div>
  );
}

function LawRow({ law }: { law: Law }) {
  const holds = law.broken === 0;
  const Icon = holds ? CircleCheck : CircleX;
  const counts = Object.entries(law.counts).filter(([, count]) => count !== 0);
  return (
    <li className="flex gap-3 px-4 py-3">
      <Icon size={18} aria-hidden className={`mt-0.5 shrink-0 ${holds ? "text-good" : "text-bad"}`} />
      <div className="min-w-0 flex-1">
        <p className="flex flex-wrap items-baseline justify-between gap-x-4">
          <span>
            <span className="sr-only">{holds ? "holds: " : "broken: "}</span>
            {law.sentence}
          </span>
          <span className="text-xs text-muted tabular-nums">
            {numbers.format(law.checked)} checked{!holds && `, ${numbers.format(law.broken)} broken`}
          </span>
        </p>
        <p className="mt-0.5 font-mono text-xs text-muted">
          {law.law}
          {counts.map(([name, count]) => ` · ${name.replaceAll("_", " ")} ${numbers.format(count)}`).join("")}
        </p>
        {law.counterexample && (
          <p className="mt-1 rounded-md bg-bad-soft p-2 text-xs break-words">{law.counterexample}</p>
        )}
      </div>
    </li>
  );
}

/** Two steps of the same law: what they checked adds up, and the first counterexample stays. */
function added(before: Law | undefined, next: Law): Law {
  if (!before) return next;
  const counts: Record<string, number> = { ...before.counts };
  for (const [name, count] of Object.entries(next.counts)) counts[name] = (counts[name] ?? 0) + count;
  return {
    ...next,
    checked: before.checked + next.checked,
    broken: before.broken + next.broken,
    counterexample: before.counterexample ?? next.counterexample,
    counts,
  };
}
