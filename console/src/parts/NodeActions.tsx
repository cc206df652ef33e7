/** What staff can do with a machine. Each dialog names whom it touches; a write-off names what is lost. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { answer, api, type Schemas } from "../api/client";
import { type NodeDetail, tenants } from "../api/queries/nodes";
import { ActionDialog } from "./Dialog";
import { CheckField, ReasonField, TextField } from "./Fields";
import { useLack } from "./place";
import { Button } from "./ui";

type Held = Schemas["OccupancyView"];
type Move = Schemas["NodeMove"] | "cordon" | "uncordon" | "acknowledge" | "label";

interface NodeActionsProps {
  node: NodeDetail;
  held: Held[];
}

const KEYS: Record<Move, string[]> = {
  approve: ["node.approve"],
  reject: ["node.approve"],
  drain: ["node.operate", "node.drain"],
  resume: ["node.operate", "node.drain"],
  retire: ["node.retire"],
  write_off: ["teardown.write_off"],
  cordon: ["node.operate"],
  uncordon: ["node.operate"],
  acknowledge: ["node.approve"],
  label: ["node.operate"],
};
const WORDS: Record<Move, string> = {
  approve: "Approve",
  reject: "Reject",
  drain: "Drain",
  resume: "Resume",
  retire: "Retire",
  write_off: "Write off",
  cordon: "Cordon",
  uncordon: "Uncordon",
  acknowledge: "Acknowledge",
  label: "Label",
};
const DANGEROUS: Move[] = ["reject", "retire", "write_off"];

/** The moves that make sense now: those of the lifecycle come from the server. */
function offered(node: NodeDetail): Move[] {
  if (node.status === "retired") return [];
  const moves: Move[] = node.status === "pending" ? ["approve", "reject"] : [];
  if (node.findings.length > 0) moves.push("acknowledge");
  if (node.status !== "pending") moves.push(node.cordoned_at ? "uncordon" : "cordon");
  if (node.allowed_moves.includes("resume") || node.status === "draining" || node.status === "drained")
    moves.push("resume");
  else if (node.status !== "pending") moves.push("drain");
  moves.push("label", "retire", "write_off");
  return moves;
}

function isLifecycle(move: Move): move is Schemas["NodeMove"] {
  return !["cordon", "uncordon", "acknowledge", "label"].includes(move);
}

export function NodeActions({ node, held }: NodeActionsProps) {
  const [open, setOpen] = useState<Move | null>(null);
  const lack = useLack({ scope: "platform", id: "" });
  const reason = (move: Move) =>
    lack(...KEYS[move]) ??
    (isLifecycle(move) && !node.allowed_moves.includes(move)
      ? `not while it is ${node.status}`
      : move === "retire" && held.length > 0
        ? `${held.length} allocations are on it; drain it first`
        : undefined);
  return (
    <>
      {offered(node).map((move) => (
        <Button
          key={move}
          look={DANGEROUS.includes(move) ? "danger" : move === "approve" ? "primary" : "plain"}
          onClick={() => setOpen(move)}
          disabledReason={reason(move)}
        >
          {WORDS[move]}
        </Button>
      ))}
      {open && <MoveDialog move={open} node={node} held={held} close={() => setOpen(null)} />}
    </>
  );
}

interface MoveDialogProps extends NodeActionsProps {
  move: Move;
  close: () => void;
}

function MoveDialog({ move, node, held, close }: MoveDialogProps) {
  const queries = useQueryClient();
  const [reason, setReason] = useState("");
  const [left, setLeft] = useState("");
  const [labels, setLabels] = useState("");
  const [understood, setUnderstood] = useState(false);
  const needsReason = ["reject", "retire", "write_off", "cordon"].includes(move);
  const options: Record<string, string> = {
    write_off: ` --reason '${reason}' --may-be-left '${left}'`,
    label: ` ${labels}`,
  };
  const flags = options[move] ?? (needsReason ? ` --reason '${reason}'` : "");
  const act = async (key: string) => {
    await post(move, node.id, key, { reason, left, labels });
    await queries.invalidateQueries({ queryKey: ["node"] });
    await queries.invalidateQueries({ queryKey: ["nodes"] });
  };
  return (
    <ActionDialog
      title={`${WORDS[move]} ${node.name}?`}
      confirm={WORDS[move]}
      danger={DANGEROUS.includes(move)}
      command={`mooring nodes ${move.replace("_", "-")} ${node.name}${flags}`}
      close={close}
      act={act}
    >
      {explanation(move, node)}
      {(move === "drain" || move === "write_off" || move === "reject") && <Touched held={held} move={move} />}
      {needsReason && <ReasonField value={reason} onChange={setReason} />}
      {move === "label" && (
        <TextField
          label="Labels"
          value={labels}
          onChange={setLabels}
          required
          placeholder="rack=a7 spare-"
          help="name=value sets a label, name- removes it; others stay."
        />
      )}
      {move === "write_off" && (
        <>
          <TextField
            label="What may be left on the machine"
            value={left}
            onChange={setLeft}
            required
            minLength={10}
            maxLength={1000}
            rows={2}
            help="Its tenants can read this: no receipt will prove that their data is gone."
          />
          <CheckField
            label={`I know that ${node.name} never comes back as this node`}
            checked={understood}
            onChange={setUnderstood}
            required
          />
        </>
      )}
    </ActionDialog>
  );
}

function explanation(move: Move, node: NodeDetail): ReactNode {
  const texts: Record<Move, string> = {
    approve: `It takes work from now on, as it reports itself: ${node.slots_total} GPUs in ${node.region}.`,
    reject: "It is refused for good, and its key is revoked.",
    drain: "It takes no new allocations. It is drained when the last one on it is released; nothing is stopped.",
    resume: "It takes new allocations again.",
    cordon: "It takes no new allocations, while what is on it goes on. Its state stays.",
    uncordon: "It may take new allocations again.",
    acknowledge: "What it reports now counts as what it has. Findings about GPUs in use stay.",
    label: "Labels help to place and to find machines.",
    retire: "It leaves for good, and its key is revoked. To come back it joins as a new node.",
    write_off: `It is given up, with ${node.slots_total} GPUs: they are never used again. Its allocations end without a receipt.`,
  };
  return <p>{texts[move]}</p>;
}

function Touched({ held, move }: { held: Held[]; move: Move }) {
  const names = new Map((useQuery(tenants).data?.items ?? []).map((each) => [each.id, each.slug]));
  if (held.length === 0) return <p className="text-muted">No allocation is on it: nobody is touched.</p>;
  const owners = [...new Set(held.map((each) => each.tenant_id))];
  return (
    <div className={move === "write_off" ? "rounded-md bg-bad-soft p-3" : "rounded-md bg-sunken p-3"}>
      <p className="font-medium">
        {move === "write_off" ? "Lost with it" : "It waits for"}: {held.length}{" "}
        {held.length === 1 ? "allocation" : "allocations"} of {owners.length}{" "}
        {owners.length === 1 ? "tenant" : "tenants"}
      </p>
      <ul className="mt-1 max-h-40 space-y-0.5 overflow-y-auto text-xs">
        {held.map((each) => (
          <li key={each.id}>
            {names.get(each.tenant_id) ?? each.tenant_id}: {each.gpu_count} {each.gpu_count === 1 ? "GPU" : "GPUs"},{" "}
            {each.status.replaceAll("_", " ")}, <span className="font-mono">{each.id}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

interface Stated {
  reason: string;
  left: string;
  labels: string;
}

function post(move: Move, nodeId: string, key: string, { reason, left, labels }: Stated): Promise<unknown> {
  const params = { path: { node_id: nodeId }, header: { "Idempotency-Key": key } };
  switch (move) {
    case "cordon":
      return answer(api.POST("/api/v1/platform/nodes/{node_id}/cordon", { params, body: { reason } }));
    case "reject":
      return answer(api.POST("/api/v1/platform/nodes/{node_id}/reject", { params, body: { reason } }));
    case "retire":
      return answer(api.POST("/api/v1/platform/nodes/{node_id}/retire", { params, body: { reason } }));
    case "write_off":
      return answer(
        api.POST("/api/v1/platform/nodes/{node_id}/write-off", { params, body: { reason, may_be_left: left } }),
      );
    case "label":
      return answer(
        api.POST("/api/v1/platform/nodes/{node_id}/label", { params, body: { labels: parseLabels(labels) } }),
      );
    default:
      return answer(api.POST(`/api/v1/platform/nodes/{node_id}/${move}`, { params }));
  }
}

function parseLabels(text: string): Record<string, string | null> {
  const words = text.split(/\s+/).filter(Boolean);
  return Object.fromEntries(
    words.map((word) => {
      const [name, ...rest] = word.split("=");
      return rest.length > 0 ? [name, rest.join("=")] : [word.replace(/-$/, ""), null];
    }),
  );
}
