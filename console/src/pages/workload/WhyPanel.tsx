/** Why it is as it is, cause by cause, and the one next step: a button where it is an action of this page. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import ArrowRight from "lucide-react/icons/arrow-right";
import type { Instance, Schemas } from "../../api/client";
import { why } from "../../api/queries/runtime";
import { Status } from "../../parts/Status";
import { Ago } from "../../parts/time";
import { Button, CommandLine, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import type { Tab } from "../../router";
import { hindered, type InstanceVerb } from "./InstanceDialog";

interface WhyPanelProps {
  instance: Instance;
  act: (verb: InstanceVerb) => void;
}

export function WhyPanel({ instance, act }: WhyPanelProps) {
  const explained = useQuery(why(instance));
  return (
    <Panel title="Why">
      {explained.error ? (
        <ProblemBox error={explained.error} retry={() => explained.refetch()} />
      ) : !explained.data ? (
        <Skeleton rows={3} />
      ) : (
        <div className="space-y-4 p-4">
          <ol className="space-y-3">
            {explained.data.chain.map((each, depth) => (
              <Cause key={each.id} cause={each} depth={depth} />
            ))}
          </ol>
          <NextStep next={explained.data.next} instance={instance} act={act} />
        </div>
      )}
    </Panel>
  );
}

function Cause({ cause, depth }: { cause: Schemas["CauseView"]; depth: number }) {
  return (
    <li className={depth > 0 ? "border-l-2 border-line pl-3" : ""}>
      <p className="flex flex-wrap items-center gap-2">
        <span className="text-muted">{cause.noun}</span>
        <span className="font-medium break-all">{cause.name}</span>
        <Status kind={cause.noun} value={cause.status} />
        {cause.code && <code className="font-mono text-xs text-muted">{cause.code}</code>}
        {cause.since && (
          <span className="text-xs text-muted">
            <Ago at={cause.since} />
          </span>
        )}
      </p>
      <p className="mt-1 break-words">{cause.text}</p>
      {cause.last_lines.length > 0 && (
        <pre className="mt-2 overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
          {cause.last_lines.join("\n")}
        </pre>
      )}
    </li>
  );
}

function NextStep({ next, instance, act }: WhyPanelProps & { next: Schemas["NextView"] }) {
  return (
    <div className="rounded-md bg-accent-soft p-3">
      <p className="flex gap-2">
        <ArrowRight size={16} className="mt-0.5 shrink-0 text-accent" aria-hidden />
        <span>
          <span className="font-semibold">{next.who === "nobody" ? "Next" : `Next, ${who(next.who)}`}:</span>{" "}
          {next.what}
        </span>
      </p>
      {next.command && (
        <div className="mt-2 space-y-2">
          <StepButton command={next.command} instance={instance} act={act} />
          <CommandLine command={next.command} />
        </div>
      )}
    </div>
  );
}

/** The tabs on which a command of the CLI has its place. */
const PLACES: [RegExp, Tab, string][] = [
  [/^mooring instances members /, "members", "Go to the members"],
  [/^mooring (receipts|nodes write-off) /, "receipts", "Go to the receipts"],
];

function StepButton({ command, instance, act }: WhyPanelProps & { command: string }) {
  const verb = (["stop", "restart", "repair"] as const).find((each) =>
    command.startsWith(`mooring instances ${each} ${instance.id}`),
  );
  if (verb)
    return (
      <Button look="primary" onClick={() => act(verb)} disabledReason={hindered(instance, verb)}>
        {verb.slice(0, 1).toUpperCase() + verb.slice(1)}
      </Button>
    );
  const place = PLACES.find(([pattern]) => pattern.test(command));
  if (!place) return null;
  return (
    <Link to="/workloads/$id" params={{ id: instance.id }} search={{ tab: place[1] }} className="link">
      {place[2]}
    </Link>
  );
}

function who(word: string): string {
  return word === "you" ? "you" : `the ${word.replaceAll("_", " ")}`;
}
