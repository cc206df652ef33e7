/** The tokens with which machines join; each works once, for fifteen minutes. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../api/client";
import { enrolmentTokens } from "../api/queries/nodes";
import { type Column, DataTable } from "./DataTable";
import { ActionDialog } from "./Dialog";
import { CheckField, TextField } from "./Fields";
import { useLack } from "./place";
import { ShownOnce } from "./ShownOnce";
import { Ago } from "./time";
import { Button, CommandLine, Empty } from "./ui";

type Token = Schemas["EnrolmentTokenView"];

export function EnrolmentTokens({ cursor, go }: { cursor: string | undefined; go: (cursor?: string) => void }) {
  const page = useQuery(enrolmentTokens(cursor));
  const queries = useQueryClient();
  const lack = useLack({ scope: "platform", id: "" })("node.enrol");
  const [isOpen, setOpen] = useState(false);
  const [revoked, setRevoked] = useState<Token | null>(null);
  const [region, setRegion] = useState("");
  const [needsApproval, setNeedsApproval] = useState(false);
  const [made, setMade] = useState<string | null>(null);
  const refresh = () => queries.invalidateQueries({ queryKey: ["enrolment-tokens"] });
  const columns: Column<Token>[] = [
    { head: "Token", narrow: "line", cell: (each) => <span className="font-mono text-xs">{each.id}</span> },
    { head: "Region", cell: (each) => each.region },
    { head: "State", cell: (each) => stateOf(each) },
    { head: "Approval", cell: (each) => <span className="text-muted">{each.approval}</span> },
    {
      head: "Expires",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.expires_at} />
        </span>
      ),
    },
    {
      head: "Actions",
      cell: (each) =>
        stateOf(each) === "waits for a machine" && (
          <Button look="danger" onClick={() => setRevoked(each)} disabledReason={lack}>
            Revoke
          </Button>
        ),
    },
  ];
  return (
    <>
      <div className="mb-4 flex justify-end">
        <Button look="primary" onClick={() => setOpen(true)} disabledReason={lack}>
          New token
        </Button>
      </div>
      <DataTable
        label="Enrolment tokens"
        columns={columns}
        query={page}
        rowKey={(each) => each.id}
        pages={{ cursor, go }}
        empty={
          <Empty title="There is no enrolment token" command="mooring nodes enrolment-tokens create --region eu-west">
            A machine joins with a token that works once.
          </Empty>
        }
      />
      {isOpen && (
        <ActionDialog
          title="New enrolment token"
          confirm="Make it"
          command={`mooring nodes enrolment-tokens create${region ? ` --region ${region}` : ""}${needsApproval ? " --approval required" : ""}`}
          close={() => setOpen(false)}
          act={async (key) => {
            const answered = await answer(
              api.POST("/api/v1/platform/nodes/enrolment-tokens", {
                params: { header: { "Idempotency-Key": key } },
                body: { ...(region ? { region } : {}), approval: needsApproval ? "required" : "automatic" },
              }),
            );
            setMade(answered.token);
            await refresh();
          }}
        >
          <p>One machine can join with it within fifteen minutes.</p>
          <TextField
            label="Region"
            value={region}
            onChange={setRegion}
            help="Leave it empty for the region of the settings."
            maxLength={40}
          />
          <CheckField
            label="A person approves the machine before it takes work"
            checked={needsApproval}
            onChange={setNeedsApproval}
          />
        </ActionDialog>
      )}
      {revoked && (
        <ActionDialog
          title="Revoke this token?"
          confirm="Revoke it"
          danger
          command={`mooring nodes enrolment-tokens revoke ${revoked.id}`}
          close={() => setRevoked(null)}
          act={async (key) => {
            await answer(
              api.DELETE("/api/v1/platform/nodes/enrolment-tokens/{enrolment_token_id}", {
                params: { path: { enrolment_token_id: revoked.id }, header: { "Idempotency-Key": key } },
              }),
            );
            await refresh();
          }}
        >
          <p>No machine can join with it any more. Machines that have joined stay.</p>
        </ActionDialog>
      )}
      {made && (
        <ShownOnce title="The enrolment token" label="Enrolment token" secret={made} close={() => setMade(null)}>
          <p className="text-muted">On the machine; it reads the token from its input:</p>
          <CommandLine command={`mooring-agent enrol --url ${location.origin} --name NAME --token-file -`} />
        </ShownOnce>
      )}
    </>
  );
}

function stateOf(token: Token): string {
  if (token.revoked_at) return "revoked";
  if (token.used_at) return "used";
  return new Date(token.expires_at).getTime() < Date.now() ? "expired" : "waits for a machine";
}
