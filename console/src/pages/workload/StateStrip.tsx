/** The lifecycle of a workload, drawn from the server's reference: the state that it is in, and where it can go. */
import { useQuery } from "@tanstack/react-query";
import ChevronRight from "lucide-react/icons/chevron-right";
import type { Instance } from "../../api/client";
import { reference } from "../../api/queries/reference";
import { Button } from "../../parts/ui";
import { hindered, type InstanceVerb } from "./InstanceDialog";

export function StateStrip({ instance, act }: { instance: Instance; act: (verb: InstanceVerb) => void }) {
  const lifecycle = useQuery(reference).data?.lifecycles.find((each) => each.name === "instance");
  if (!lifecycle) return null;
  const out = lifecycle.edges.filter((each) => each.source === instance.status);
  return (
    <section aria-label="Lifecycle" className="rounded-lg border border-line bg-panel p-4 lg:col-span-2">
      <ol className="flex flex-wrap items-center gap-y-2">
        {Object.entries(lifecycle.states).map(([state, meaning], index, all) => {
          const before = all[index - 1]?.[0];
          const follows = lifecycle.edges.some((each) => each.source === before && each.target === state);
          const isCurrent = state === instance.status;
          const isNext = out.some((each) => each.target === state);
          return (
            <li key={state} className="flex items-center">
              {follows ? (
                <ChevronRight size={14} aria-hidden className="mx-0.5 text-muted" />
              ) : (
                index > 0 && <span aria-hidden className="mx-2 h-4 border-l border-line" />
              )}
              <span
                title={meaning}
                aria-current={isCurrent ? "step" : undefined}
                className={`rounded-full border px-2.5 py-0.5 text-xs ${
                  isCurrent
                    ? "border-accent bg-accent-soft font-semibold text-accent"
                    : isNext
                      ? "border-dashed border-muted text-ink"
                      : "border-transparent text-muted"
                }`}
              >
                {state}
              </span>
            </li>
          );
        })}
      </ol>
      <p className="mt-2 text-muted first-letter:capitalize">
        {lifecycle.states[instance.status]?.replaceAll("`", "")}.
      </p>
      {out.length > 0 && (
        <ul className="mt-3 flex flex-wrap items-center gap-x-5 gap-y-2 text-xs">
          {out.map((each) => (
            <li key={`${each.trigger} ${each.target}`} className="flex items-center gap-2" title={each.why}>
              {each.trigger === "stop" ? (
                <Button onClick={() => act("stop")} disabledReason={hindered(instance, "stop")}>
                  Stop → {each.target}
                </Button>
              ) : (
                <span className="text-muted">
                  {each.trigger.replaceAll("_", " ")} → {each.target}, by its {each.by}
                </span>
              )}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
