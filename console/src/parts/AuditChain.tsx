/** The hash chain of the trail: how far it reaches, where retention cut it, and a button that recomputes it here. */
import { useQuery } from "@tanstack/react-query";
import CircleCheck from "lucide-react/icons/circle-check";
import CircleX from "lucide-react/icons/circle-x";
import { useState } from "react";
import { type ChainCheck, verifyChain } from "../api/auditChain";
import { flagOf, type Place } from "../api/place";
import { auditChain } from "../api/queries/records";
import { Ago } from "./time";
import { Button, CommandLine, Definition, Panel, ProblemBox, Skeleton } from "./ui";

export function AuditChain({ place }: { place: Place | undefined }) {
  const chain = useQuery(auditChain(place));
  const [progress, setProgress] = useState<number | null>(null);
  const [check, setCheck] = useState<ChainCheck | null>(null);
  const [error, setError] = useState<unknown>(null);
  if (!place || place.scope === "project")
    return (
      <Panel title="Hash chain">
        <p className="p-4 text-muted">A project has no chain of its own; its rows are in the chain of its tenant.</p>
      </Panel>
    );
  const verify = async () => {
    setError(null);
    setCheck(null);
    setProgress(0);
    try {
      setCheck(await verifyChain(place, setProgress));
    } catch (failure) {
      setError(failure);
    } finally {
      setProgress(null);
    }
  };
  const found = chain.data;
  return (
    <Panel
      title="Hash chain"
      aside={
        <Button onClick={() => void verify()} disabled={progress !== null || !found}>
          {progress === null ? "Verify it here" : `Verifying, ${progress} rows…`}
        </Button>
      }
    >
      {chain.error ? (
        <ProblemBox error={chain.error} />
      ) : !found ? (
        <Skeleton rows={2} />
      ) : (
        <div className="space-y-4 p-4">
          <dl className="grid grid-cols-2 gap-4">
            <Definition label="Rows stored">{found.stored_rows.toLocaleString("en")}</Definition>
            <Definition label="Chained up to">
              position {found.head?.position ?? 0}
              {found.waiting_rows > 0 && `, ${found.waiting_rows} newer rows wait`}
            </Definition>
            <Definition label="Begins" wide>
              {found.checkpoint ? (
                <>
                  after position {found.checkpoint.position}; retention deleted what was before
                  {found.checkpoint_made_at && (
                    <>
                      , <Ago at={found.checkpoint_made_at} />
                    </>
                  )}
                </>
              ) : (
                "with its first row; retention deleted nothing"
              )}
            </Definition>
          </dl>
          <div aria-live="polite">{check && <Verdict check={check} />}</div>
          {error !== null && <ProblemBox error={error} />}
          <CommandLine command={`mooring audit verify ${flagOf(place)}`} />
        </div>
      )}
    </Panel>
  );
}

function Verdict({ check }: { check: ChainCheck }) {
  if (check.fault)
    return (
      <p className="flex items-center gap-2 font-semibold text-bad">
        <CircleX size={18} aria-hidden /> The chain is broken: {check.fault}
      </p>
    );
  return (
    <div>
      <p className="flex items-center gap-2 font-semibold text-good">
        <CircleCheck size={18} aria-hidden /> The chain is whole
      </p>
      <p className="mt-1 text-xs text-muted">
        This browser recomputed the hashes of {check.rows} rows, positions {check.first + 1} to {check.last}, and
        checked {check.signatures} signatures of the platform. {check.waiting} newer rows are not chained yet.
      </p>
    </div>
  );
}
