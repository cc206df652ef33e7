/**
 * What stands where in its promotion: a column for each state. A card can be dropped only where a lawful move leads,
 * and its button offers the same moves to the keyboard. The moves come from the server, their targets from its reference.
 */
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import type { Promotion, Trigger } from "../api/queries/artifacts";
import { reference, useMeaning } from "../api/queries/reference";
import { Status } from "./Status";
import { Button, ProblemBox, Skeleton } from "./ui";

export const PROMOTIONS: readonly Promotion[] = ["draft", "staged", "canary", "active", "deprecated", "retired"];

export interface Card {
  id: string;
  name: string;
  state: Promotion;
  moves: Trigger[];
  /** Why this one cannot be moved here, if so. */
  lack?: string;
  body: ReactNode;
}

export interface BoardColumn {
  state: Promotion;
  cards: Card[] | undefined;
  error?: unknown;
  more?: ReactNode;
}

interface PromotionBoardProps {
  columns: BoardColumn[];
  /** Why nobody can be moved here, if so. */
  lack: string | undefined;
  /** Asks for the move; without one the dialog offers all of them. */
  move: (card: Card, trigger: Trigger | undefined) => void;
}

/** Where a move leads from a state, by the server's reference. */
export function useTargets(): (state: Promotion, trigger: Trigger) => Promotion | undefined {
  const { data } = useQuery(reference);
  const edges = data?.lifecycles.find((each) => each.name === "promotion")?.edges ?? [];
  return (state, trigger) =>
    PROMOTIONS.find((word) =>
      edges.some((edge) => edge.source === state && edge.trigger === trigger && edge.target === word),
    );
}

export function PromotionBoard({ columns, lack, move }: PromotionBoardProps) {
  const [dragged, setDragged] = useState<Card | null>(null);
  const target = useTargets();
  const meaning = useMeaning();
  const leading = (state: Promotion) => dragged?.moves.find((each) => target(dragged.state, each) === state);
  return (
    <div className="grid gap-3 md:grid-cols-3 xl:grid-cols-6">
      {columns.map(({ state, cards, error, more }) => {
        const trigger = leading(state);
        return (
          <section
            key={state}
            aria-label={state}
            onDragOver={(event) => trigger && event.preventDefault()}
            onDrop={(event) => {
              event.preventDefault();
              if (dragged && trigger) move(dragged, trigger);
              setDragged(null);
            }}
            className={`min-w-0 rounded-lg border p-2 ${
              dragged && trigger ? "border-accent bg-accent-soft" : "border-line bg-sunken"
            } ${dragged && !trigger && dragged.state !== state ? "opacity-50" : ""}`}
          >
            <header className="mb-2 flex items-center justify-between gap-2 px-1" title={meaning("promotion", state)}>
              <Status kind="promotion" value={state} />
              <span className="text-xs text-muted tabular-nums">{cards?.length}</span>
            </header>
            {error ? (
              <ProblemBox error={error} />
            ) : !cards ? (
              <Skeleton rows={2} />
            ) : (
              <ul className="space-y-2">
                {cards.map((card) => (
                  <li
                    key={card.id}
                    draggable={!lack && card.moves.length > 0}
                    onDragStart={(event) => {
                      event.dataTransfer.effectAllowed = "move";
                      setDragged(card);
                    }}
                    onDragEnd={() => setDragged(null)}
                    className={`space-y-2 rounded-md border border-line bg-panel p-3 ${
                      !lack && card.moves.length > 0 ? "cursor-grab" : ""
                    }`}
                  >
                    {card.body}
                    <Button
                      className="w-full"
                      aria-label={`Move ${card.name}`}
                      disabledReason={
                        lack ?? card.lack ?? (card.moves.length === 0 ? `no move leads on from ${state}` : undefined)
                      }
                      onClick={() => move(card, undefined)}
                    >
                      Move…
                    </Button>
                  </li>
                ))}
                {cards.length === 0 && <li className="px-1 py-3 text-xs text-muted">none</li>}
              </ul>
            )}
            {more}
          </section>
        );
      })}
    </div>
  );
}
