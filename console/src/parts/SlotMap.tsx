/** GPU slots as small blocks. Each use has a colour, a mark and a word; the legend names them, with counts. */
import type { Schemas } from "../api/client";

export type SlotUse = Schemas["SlotUse"];

interface Look {
  label: string;
  meaning: string;
  mark: string;
  className: string;
}

export const SLOT_LOOKS: Record<SlotUse, Look> = {
  free: { label: "free", meaning: "no allocation has it", mark: "○", className: "border-muted bg-panel text-muted" },
  held: {
    label: "held",
    meaning: "an allocation is being made on it or torn down",
    mark: "·",
    className: "border-busy bg-busy-soft text-busy",
  },
  in_use: {
    label: "in use",
    meaning: "an active allocation has it",
    mark: "■",
    className: "border-good bg-good-soft text-good",
  },
  cleanup_blocked: {
    label: "cleanup blocked",
    meaning: "no clean receipt proves that nothing is left",
    mark: "!",
    className: "border-bad bg-bad-soft text-bad",
  },
  quarantined: {
    label: "quarantined",
    meaning: "its machine is retired: it is never used again",
    mark: "×",
    className: "border-line bg-sunken text-muted",
  },
};

export const USES = Object.keys(SLOT_LOOKS) as SlotUse[];

export function countUses(uses: SlotUse[]): Record<SlotUse, number> {
  const counts = { free: 0, held: 0, in_use: 0, cleanup_blocked: 0, quarantined: 0 };
  for (const each of uses) counts[each] += 1;
  return counts;
}

function Block({ use, title }: { use: SlotUse; title?: string }) {
  const look = SLOT_LOOKS[use];
  return (
    <span
      title={title}
      className={`inline-grid size-5 place-items-center rounded-sm border font-mono text-xs leading-none font-bold ${look.className}`}
    >
      {look.mark}
    </span>
  );
}

/** The slots of one machine by their index; for screen readers one sentence instead of many blocks. */
export function SlotBlocks({ uses }: { uses: SlotUse[] }) {
  if (uses.length === 0) return <span className="text-xs text-muted">no GPUs</span>;
  const counts = countUses(uses);
  const said = USES.filter((use) => counts[use] > 0).map((use) => `${counts[use]} ${SLOT_LOOKS[use].label}`);
  return (
    <span role="img" aria-label={said.join(", ")} className="flex flex-wrap gap-1">
      {uses.map((use, index) => (
        <Block key={index} use={use} title={`slot ${index}: ${SLOT_LOOKS[use].label}`} />
      ))}
    </span>
  );
}

/** The slots of many machines: a bar of shares with the counts in words, since blocks would be too many. */
export function SlotTotals({ counts }: { counts: Record<SlotUse, number> }) {
  return (
    <ul className="flex flex-wrap gap-x-3 gap-y-1 text-xs">
      {USES.filter((use) => counts[use] > 0).map((use) => (
        <li key={use} className="flex items-center gap-1.5">
          <Block use={use} />
          <span className="tabular-nums">
            {counts[use]} {SLOT_LOOKS[use].label}
          </span>
        </li>
      ))}
    </ul>
  );
}

export function SlotLegend() {
  return (
    <ul aria-label="Legend" className="flex flex-wrap gap-x-4 gap-y-1.5 text-xs text-muted">
      {USES.map((use) => (
        <li key={use} className="flex items-center gap-1.5" title={SLOT_LOOKS[use].meaning}>
          <Block use={use} />
          {SLOT_LOOKS[use].label}
        </li>
      ))}
    </ul>
  );
}
