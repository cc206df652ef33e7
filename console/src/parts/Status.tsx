/** A state as icon and word; colour alone never carries the meaning. */

import CircleCheck from "lucide-react/icons/circle-check";
import CircleDashed from "lucide-react/icons/circle-dashed";
import CircleStop from "lucide-react/icons/circle-stop";
import CircleX from "lucide-react/icons/circle-x";
import Loader from "lucide-react/icons/loader-circle";
import AlertTriangle from "lucide-react/icons/triangle-alert";
import { useMeaning } from "../api/queries/reference";

type Tone = "good" | "busy" | "warn" | "bad" | "quiet";

const TONE: Record<string, Tone> = {
  running: "good",
  healthy: "good",
  ready: "good",
  succeeded: "good",
  active: "good",
  receipt: "good",
  done: "good",
  created: "busy",
  starting: "busy",
  accepted: "busy",
  joining: "busy",
  requested: "busy",
  cancelling: "busy",
  stopping: "busy",
  draining: "busy",
  removing: "busy",
  pending: "busy",
  offered: "good",
  verified: "good",
  delivered: "good",
  enrolled: "busy",
  provisioning: "busy",
  releasing: "busy",
  claimed: "busy",
  queued: "busy",
  degraded: "warn",
  blocked: "warn",
  write_off: "warn",
  deprecated: "warn",
  canary: "warn",
  unverified: "warn",
  hidden: "warn",
  failed: "bad",
  release_failed: "bad",
  unreachable: "bad",
  rejected: "bad",
  revoked: "bad",
  denied: "bad",
  dead: "bad",
  refused: "bad",
};

const LOOK: Record<Tone, string> = {
  good: "bg-good-soft text-good",
  busy: "bg-busy-soft text-busy",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  quiet: "bg-sunken text-muted",
};

const ICON = { good: CircleCheck, busy: Loader, warn: AlertTriangle, bad: CircleX, quiet: CircleDashed };

/** What the word means: `kind` is the lifecycle that the state belongs to. */
export function Status({ kind, value }: { kind: string; value: string }) {
  const meaning = useMeaning()(kind, value);
  const tone = kind === "operation" && value === "running" ? "busy" : (TONE[value] ?? "quiet");
  const Icon = value === "stopped" ? CircleStop : ICON[tone];
  return (
    <span
      title={meaning}
      className={`inline-flex items-center gap-1 rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap ${LOOK[tone]}`}
    >
      <Icon size={13} aria-hidden className={tone === "busy" ? "animate-spin [animation-duration:2.5s]" : ""} />
      {value.replaceAll("_", " ")}
    </span>
  );
}
