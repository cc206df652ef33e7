/** What a revocation would touch, and what the policy would do to it. */
import type { Schemas } from "../api/client";

interface ImpactProps {
  impact: {
    counts: { tenants: number; projects: number; instances: number; members?: number; versions?: number };
    reactions: Schemas["ImpactReactions"];
    instances: Schemas["ImpactedInstance"][];
    versions?: Schemas["ImpactedVersion"][];
  };
}

const REACTIONS: [keyof Schemas["ImpactReactions"], string][] = [
  ["notify", "the project is notified"],
  ["refuse", "actions and attachments are refused"],
  ["drain", "their members are drained"],
  ["stop", "stopped"],
];

/** `1 instance`, `2 instances`: the server names the nouns in the plural. */
function counted(count: number, nouns: string): string {
  return `${count} ${count === 1 ? nouns.replace(/s$/, "") : nouns}`;
}

export function Impact({ impact }: ImpactProps) {
  const { counts, reactions, instances, versions = [] } = impact;
  const named = Object.entries(counts).map(([noun, count]) => counted(count, noun));
  const touched = REACTIONS.filter(([key]) => reactions[key] > 0);
  const isEmpty = counts.instances === 0 && versions.length === 0;
  return (
    <section
      aria-label="What it affects"
      className={`space-y-2 rounded-md p-3 ${isEmpty ? "bg-sunken" : "bg-bad-soft"}`}
    >
      <p className="font-medium">{isEmpty ? "Nothing uses it now" : `It affects ${named.join(", ")}`}</p>
      {touched.length > 0 && (
        <ul className="list-disc pl-5 text-xs">
          {touched.map(([key, text]) => (
            <li key={key}>
              {counted(reactions[key], "instances")}: {text}
            </li>
          ))}
        </ul>
      )}
      {(versions.length > 0 || instances.length > 0) && (
        <ul className="max-h-40 space-y-0.5 overflow-y-auto text-xs">
          {versions.map((each) => (
            <li key={each.id}>
              version {each.app_slug} {each.version}, {each.promotion}
            </li>
          ))}
          {instances.map((each) => (
            <li key={each.id}>
              workload {each.name} ({each.app_slug} {each.version}), {each.status}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
