/** Whether a request fits now; if not, why, and the smallest change that would make it fit. */
import CircleCheck from "lucide-react/icons/circle-check";
import Hourglass from "lucide-react/icons/hourglass";
import type { Schemas } from "../api/client";
import { ProblemBox } from "./ui";

interface PlacementVerdictProps {
  query: { data?: Schemas["ExplanationView"]; error: unknown };
}

export function PlacementVerdict({ query }: PlacementVerdictProps) {
  if (query.error) return <ProblemBox error={query.error} />;
  if (!query.data) return null;
  const { fits, because, smallest_change } = query.data;
  if (fits)
    return (
      <p role="status" className="flex items-center gap-2 font-semibold text-good">
        <CircleCheck size={18} aria-hidden /> It fits now
      </p>
    );
  return (
    <div role="status" className="space-y-1 rounded-md bg-warn-soft p-3 text-warn">
      <p className="flex items-center gap-2 font-semibold">
        <Hourglass size={16} aria-hidden /> It would wait: {because}
      </p>
      {smallest_change && <p>What would help: {smallest_change}.</p>}
    </div>
  );
}
