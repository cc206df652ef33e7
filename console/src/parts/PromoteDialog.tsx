/** One step of a promotion: which of the lawful moves, and why. */
import { useState } from "react";
import type { Trigger } from "../api/queries/artifacts";
import { ActionDialog } from "./Dialog";
import { ReasonField, TextField } from "./Fields";
import { type Card, useTargets } from "./PromotionBoard";

export interface Promotion {
  move: Trigger;
  reason: string;
  canary_percentage?: number;
  superseded_by?: string;
  no_successor_because?: string;
}

const MEANINGS: Record<Trigger, string> = {
  stage: "Its bytes are fetched and checked; it can be tried, not yet offered.",
  canary: "A share of new launches gets it.",
  activate: "New launches get it.",
  rollback: "It goes back; what runs stays.",
  deprecate: "It is offered with a warning, and leads to its successor.",
  withdraw: "It is not offered any more.",
  retire: "It can never be used again; nothing may hold it.",
};

interface PromoteDialogProps {
  card: Card;
  trigger: Trigger | undefined;
  /** The command up to the name. */
  command: string;
  isVersion?: boolean;
  act: (key: string, promotion: Promotion) => Promise<unknown>;
  close: () => void;
}

export function PromoteDialog({ card, trigger, command, isVersion, act, close }: PromoteDialogProps) {
  const target = useTargets();
  const [move, setMove] = useState<Trigger | undefined>(trigger ?? card.moves[0]);
  const [reason, setReason] = useState("");
  const [share, setShare] = useState("10");
  const [successor, setSuccessor] = useState("");
  const [none, setNone] = useState("");
  const body = (): Promotion => ({
    move: move ?? "stage",
    reason,
    ...(isVersion && move === "canary" ? { canary_percentage: Number(share) } : {}),
    ...(move === "deprecate" && successor ? { superseded_by: successor } : {}),
    ...(move === "deprecate" && !successor ? { no_successor_because: none } : {}),
  });
  const flags = Object.entries(body()).map(([name, value]) => `--${name.replaceAll("_", "-")} '${value}'`);
  return (
    <ActionDialog
      title={`Move ${card.name}`}
      confirm="Move it"
      danger={move === "retire" || move === "withdraw"}
      command={`${command} ${flags.join(" ")}`}
      close={close}
      act={(key) => act(key, body())}
    >
      <fieldset className="space-y-2">
        <legend className="mb-1 font-medium">From {card.state} to</legend>
        {card.moves.map((each) => (
          <label key={each} className="flex items-start gap-2">
            <input
              type="radio"
              name="move"
              className="mt-1 size-4 accent-accent"
              checked={move === each}
              onChange={() => setMove(each)}
            />
            <span>
              <span className="font-medium">{target(card.state, each) ?? each}</span>{" "}
              <span className="text-muted">
                ({each}) {MEANINGS[each]}
              </span>
            </span>
          </label>
        ))}
      </fieldset>
      {isVersion && move === "canary" && (
        <TextField label="Percent of new launches" type="number" min={1} value={share} onChange={setShare} required />
      )}
      {move === "deprecate" && (
        <>
          <TextField
            label="Successor"
            value={successor}
            onChange={setSuccessor}
            help={isVersion ? "The version that replaces it, by its id." : "The artifact that replaces it, by its id."}
          />
          {!successor && (
            <TextField
              label="Why there is no successor"
              value={none}
              onChange={setNone}
              required
              minLength={10}
              maxLength={1000}
            />
          )}
        </>
      )}
      <ReasonField value={reason} onChange={setReason} />
    </ActionDialog>
  );
}
