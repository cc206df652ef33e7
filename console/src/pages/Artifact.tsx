/** One artifact: whether it can be trusted and why, its checks, its history, and what a revocation would touch. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useParams, useSearch } from "@tanstack/react-router";
import CircleCheck from "lucide-react/icons/circle-check";
import CircleX from "lucide-react/icons/circle-x";
import { useState } from "react";
import { answer, isProblem, type Schemas } from "../api/client";
import { apiAt, flagOf, HERE, type Place } from "../api/place";
import { type Artifact as ArtifactView, artifact, checks, evidence, history, impact } from "../api/queries/artifacts";
import { type Column, DataTable } from "../parts/DataTable";
import { ActionDialog } from "../parts/Dialog";
import { CheckField, ReasonField } from "../parts/Fields";
import { Impact } from "../parts/Impact";
import { PromoteDialog, type Promotion } from "../parts/PromoteDialog";
import { useLack, usePlace } from "../parts/place";
import { Status } from "../parts/Status";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, CopyButton, Definition, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import { NotFoundBody } from "./NotFound";

export function Artifact() {
  const { id } = useParams({ from: "/shell/artifacts/$id" });
  const { place } = usePlace(useSearch({ from: "/shell/artifacts/$id" }).at);
  const found = useQuery(artifact(place, id));
  useTitle(found.data ? nameOf(found.data) : "Artifact");
  if (isProblem(found.error, 404)) return <NotFoundBody noun="artifact" />;
  if (found.error && !found.data) return <ProblemBox error={found.error} retry={() => found.refetch()} />;
  if (!found.data || !place) return <Skeleton rows={8} />;
  return <ArtifactPage artifact={found.data} place={place} />;
}

function nameOf({ location, labels }: ArtifactView): string {
  return (
    labels.name ??
    location
      .split("@")[0]
      ?.replace(/^file:/, "")
      .split("/")
      .pop() ??
    location
  );
}

interface PartProps {
  artifact: ArtifactView;
  place: Place;
}

function ArtifactPage({ artifact, place }: PartProps) {
  return (
    <>
      <PageHead title={nameOf(artifact)} sub={`${artifact.kind} artifact of the ${artifact.visibility}`}>
        <Actions artifact={artifact} place={place} />
      </PageHead>
      <div className="mb-4 flex flex-wrap items-center gap-2" role="status" aria-label="State">
        <Status kind="promotion" value={artifact.promotion} />
        <Status kind="trust" value={artifact.trust} />
        {artifact.revoked_at && (
          <span className="text-xs text-bad">
            revoked <Ago at={artifact.revoked_at} />: {artifact.revocation_reason}
          </span>
        )}
      </div>
      <div className="grid gap-5 lg:grid-cols-2">
        <Panel title="Content">
          <dl className="space-y-4 p-4">
            <Definition label="Location">
              <span className="font-mono text-xs break-all">{artifact.location}</span>
            </Definition>
            <Definition label="Digest">
              <span className="flex items-start font-mono text-xs break-all">
                {artifact.digest}
                <CopyButton text={artifact.digest} label="Copy the digest" />
              </span>
            </Definition>
            <Definition label="Size">{(artifact.size_bytes / 2 ** 20).toFixed(1)} MiB</Definition>
            {artifact.deprecation_reason && <Definition label="Deprecated">{artifact.deprecation_reason}</Definition>}
          </dl>
        </Panel>
        <Evidence artifact={artifact} place={place} />
        <div className="lg:col-span-2">
          <DataTable
            label="Checks"
            title="Checks of its bytes"
            columns={CHECKS}
            query={useQuery(checks(place, artifact.id))}
            rowKey={(each) => each.id}
            empty={<Empty title="It was not checked yet">Staging it fetches and hashes every layer.</Empty>}
          />
        </div>
        <div className="lg:col-span-2">
          <DataTable
            label="History"
            title="History"
            columns={STEPS}
            query={useQuery(history(place, artifact.id))}
            rowKey={(each) => `${each.machine} ${each.generation}`}
            empty={<Empty title="It has not moved yet" />}
          />
        </div>
      </div>
    </>
  );
}

function Evidence({ artifact, place }: PartProps) {
  const found = useQuery(evidence(place, artifact.id));
  return (
    <Panel title="Why it is trusted, or not">
      {found.error ? (
        <ProblemBox error={found.error} />
      ) : !found.data ? (
        <Skeleton />
      ) : (
        <ul className="divide-y divide-line">
          {found.data.checks.map((each) => (
            <li key={`${each.name} ${each.subject}`} className="flex gap-2 px-4 py-2.5">
              {each.passed ? (
                <CircleCheck size={16} className="mt-0.5 shrink-0 text-good" role="img" aria-label="passed" />
              ) : (
                <CircleX size={16} className="mt-0.5 shrink-0 text-bad" role="img" aria-label="failed" />
              )}
              <span className="min-w-0">
                <span className="font-medium">{each.name.replaceAll("_", " ")}</span>
                <span className="block text-xs break-words text-muted">{each.detail}</span>
              </span>
            </li>
          ))}
          {found.data.doubts.map((each) => (
            <li key={each.code} className="px-4 py-2.5 text-warn">
              {each.reason}
            </li>
          ))}
          {found.data.evidence.map((each) => (
            <li key={each.id} className="px-4 py-2.5 text-xs text-muted">
              {each.kind.replaceAll("_", " ")}, seen <Ago at={each.observed_at} />
              {each.relied_on && ", relied on"}
              {each.fault && <span className="text-bad">: {each.fault}</span>}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

const CHECKS: Column<Schemas["ArtifactCheckView"]>[] = [
  { head: "Check", narrow: "line", cell: (each) => <span className="font-medium">{each.name}</span> },
  { head: "State", cell: (each) => <Status kind="artifact_check" value={each.status} /> },
  {
    head: "Progress",
    cell: (each) => (
      <span className="flex items-center gap-2">
        <progress
          aria-label={`Progress of the ${each.name} check`}
          className="h-2 w-24 accent-accent"
          max={each.bytes_total ?? Math.max(1, each.bytes_done)}
          value={each.bytes_done}
        />
        <span className="text-xs text-muted tabular-nums">{(each.bytes_done / 2 ** 20).toFixed(1)} MiB</span>
      </span>
    ),
  },
  { head: "Result", narrow: "line", cell: (each) => <span className="text-muted">{each.detail}</span> },
  {
    head: "Begun",
    cell: (each) => (
      <span className="text-muted">
        <Ago at={each.created_at} />
      </span>
    ),
  },
];

const STEPS: Column<Schemas["StepView"]>[] = [
  {
    head: "Step",
    narrow: "line",
    cell: (each) => (
      <>
        {each.before} → <span className="font-medium">{each.after}</span>{" "}
        <span className="text-xs text-muted">{each.machine}</span>
      </>
    ),
  },
  { head: "Reason", narrow: "line", cell: (each) => each.reason },
  {
    head: "Who",
    cell: (each) => <span className="font-mono text-xs text-muted">{each.actor_id ?? "the platform"}</span>,
  },
  {
    head: "When",
    cell: (each) => (
      <span className="text-muted">
        <Ago at={each.occurred_at} />
      </span>
    ),
  },
];

function Actions({ artifact, place }: PartProps) {
  const queries = useQueryClient();
  const lack = useLack(place);
  const [open, setOpen] = useState<"move" | "verify" | "revoke" | null>(null);
  const close = () => setOpen(null);
  const path = { ...HERE, artifact_id: artifact.id };
  const refresh = () => queries.invalidateQueries({ queryKey: ["artifact", artifact.id] });
  const gone = artifact.revoked_at ? "it is revoked" : undefined;
  const card = {
    id: artifact.id,
    name: nameOf(artifact),
    state: artifact.promotion,
    moves: artifact.allowed_moves,
    body: null,
  };
  const promote = async (key: string, body: Promotion) => {
    const { canary_percentage: _, ...sent } = body;
    await answer(
      apiAt(place).POST("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/promote", {
        params: { path, header: { "Idempotency-Key": key } },
        body: sent,
      }),
    );
    await refresh();
  };
  return (
    <>
      <Button
        onClick={() => setOpen("move")}
        disabledReason={
          lack("artifact.promote") ??
          gone ??
          (card.moves.length === 0 ? `no move leads on from ${card.state}` : undefined)
        }
      >
        Move…
      </Button>
      <Button onClick={() => setOpen("verify")} disabledReason={lack("artifact.verify") ?? gone}>
        Verify again
      </Button>
      <Button look="danger" onClick={() => setOpen("revoke")} disabledReason={lack("artifact.revoke") ?? gone}>
        Revoke
      </Button>
      {open === "move" && (
        <PromoteDialog
          card={card}
          trigger={undefined}
          command={`mooring artifacts promote ${flagOf(place)} ${artifact.id}`}
          act={promote}
          close={close}
        />
      )}
      {open === "verify" && (
        <ActionDialog
          title="Verify it again?"
          confirm="Verify"
          command={`mooring artifacts verify ${flagOf(place)} ${artifact.id}`}
          close={close}
          act={async (key) => {
            await answer(
              apiAt(place).POST("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/verify", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            await refresh();
          }}
        >
          <p>The source is inspected, the signatures are collected, and the trust follows from them.</p>
        </ActionDialog>
      )}
      {open === "revoke" && <Revoke artifact={artifact} place={place} close={close} done={refresh} />}
    </>
  );
}

interface RevokeProps extends PartProps {
  close: () => void;
  done: () => Promise<void>;
}

function Revoke({ artifact, place, close, done }: RevokeProps) {
  const found = useQuery(impact(place, artifact.id));
  const [reason, setReason] = useState("");
  const [seen, setSeen] = useState(false);
  return (
    <ActionDialog
      title={`Revoke ${nameOf(artifact)} for good?`}
      confirm="Revoke it"
      danger
      command={`mooring artifacts revoke ${flagOf(place)} ${artifact.id} --reason '${reason}'`}
      close={close}
      act={async (key) => {
        await answer(
          apiAt(place).POST("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/revoke", {
            params: { path: { ...HERE, artifact_id: artifact.id }, header: { "Idempotency-Key": key } },
            body: { reason },
          }),
        );
        await done();
      }}
    >
      <p>Every later use of its digest is refused. This cannot be undone.</p>
      {found.error ? (
        <ProblemBox error={found.error} />
      ) : !found.data ? (
        <Skeleton rows={3} />
      ) : (
        <>
          <Impact impact={found.data} />
          <ReasonField value={reason} onChange={setReason} />
          <CheckField label="I saw what it affects" checked={seen} onChange={setSeen} required />
        </>
      )}
    </ActionDialog>
  );
}
