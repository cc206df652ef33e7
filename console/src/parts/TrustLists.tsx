/** From where artifacts may come, and whose signatures are trusted. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, type Schemas } from "../api/client";
import { apiAt, flagOf, HERE, type Place } from "../api/place";
import { signerKeyImpact, signerKeys, sources } from "../api/queries/artifacts";
import { DataTable } from "./DataTable";
import { ActionDialog } from "./Dialog";
import { CheckField, TextField } from "./Fields";
import { Impact } from "./Impact";
import { useLack } from "./place";
import { Status } from "./Status";
import { Ago } from "./time";
import { Button, Empty, ProblemBox, Skeleton } from "./ui";

interface ListProps {
  place: Place;
  cursor: string | undefined;
  go: (cursor: string | undefined) => void;
}

type Source = Schemas["ArtifactSourceView"];
type SignerKey = Schemas["SignerKeyView"];

const NO_PROJECT = "sources and keys belong to the tenant or to the platform";

export function Sources({ place, cursor, go }: ListProps) {
  const queries = useQueryClient();
  const lack = useLack(place)("artifact_source.update") ?? (place.scope === "project" ? NO_PROJECT : undefined);
  const [isOpen, setOpen] = useState(false);
  const [removed, setRemoved] = useState<Source | null>(null);
  const [name, setName] = useState("");
  const [pattern, setPattern] = useState("");
  const [isPrivate, setPrivate] = useState(false);
  const refresh = () => queries.invalidateQueries({ queryKey: ["artifact-sources"] });
  return (
    <>
      <div className="mb-4 flex justify-end">
        <Button look="primary" onClick={() => setOpen(true)} disabledReason={lack}>
          Allow a source
        </Button>
      </div>
      <DataTable
        label="Sources"
        columns={[
          { head: "Name", narrow: "line", cell: (each) => <span className="font-medium">{each.name}</span> },
          {
            head: "Pattern",
            narrow: "line",
            cell: (each) => <span className="font-mono text-xs">{each.pattern}</span>,
          },
          {
            head: "Of",
            cell: (each) => <span className="text-muted">{each.tenant_id ? "the tenant" : "the platform"}</span>,
          },
          { head: "Private network", cell: (each) => (each.reaches_private ? "reaches it" : "no") },
          {
            head: "Credential",
            cell: (each) => <span className="text-muted">{each.credential?.username ?? "none"}</span>,
          },
          {
            head: "Actions",
            cell: (each) => (
              <Button
                look="danger"
                onClick={() => setRemoved(each)}
                disabledReason={
                  lack ?? (place.scope === "tenant" && !each.tenant_id ? "it belongs to the platform" : undefined)
                }
              >
                Remove
              </Button>
            ),
          },
        ]}
        query={useQuery(sources(place, cursor))}
        rowKey={(each) => each.id}
        pages={{ cursor, go }}
        empty={
          <Empty title="No source is allowed" command={`mooring artifact-sources create ${flagOf(place)}`}>
            An artifact is registered only if its source is in this list.
          </Empty>
        }
      />
      {isOpen && (
        <ActionDialog
          title="Allow a source"
          confirm="Allow it"
          command={`mooring artifact-sources create ${flagOf(place)} --name ${name || "NAME"} --pattern '${pattern}'${isPrivate ? " --reaches-private" : ""}`}
          close={() => setOpen(false)}
          act={async (key) => {
            await answer(
              apiAt(place).POST("/api/v1/tenants/{tenant_id}/artifact-sources", {
                params: { path: HERE, header: { "Idempotency-Key": key } },
                body: { name, pattern, reaches_private: isPrivate },
              }),
            );
            await refresh();
          }}
        >
          <TextField label="Name" value={name} onChange={setName} required maxLength={40} />
          <TextField
            label="Pattern"
            value={pattern}
            onChange={setPattern}
            required
            placeholder="oci://registry.example/team/*"
          />
          <CheckField label="It may be in the platform's private network" checked={isPrivate} onChange={setPrivate} />
        </ActionDialog>
      )}
      {removed && (
        <ActionDialog
          title={`Remove the source ${removed.name}?`}
          confirm="Remove it"
          danger
          command={`mooring artifact-sources delete ${flagOf(place)} ${removed.name}`}
          close={() => setRemoved(null)}
          act={async (key) => {
            await answer(
              apiAt(place).DELETE("/api/v1/tenants/{tenant_id}/artifact-sources/{source_id}", {
                params: { path: { ...HERE, source_id: removed.id }, header: { "Idempotency-Key": key } },
              }),
            );
            await refresh();
          }}
        >
          <p>
            Artifacts from <span className="font-mono text-xs">{removed.pattern}</span> are not verified any more at
            their next use.
          </p>
        </ActionDialog>
      )}
    </>
  );
}

export function SignerKeys({ place, cursor, go }: ListProps) {
  const queries = useQueryClient();
  const lack = useLack(place)("signer_key.update") ?? (place.scope === "project" ? NO_PROJECT : undefined);
  const [isOpen, setOpen] = useState(false);
  const [removed, setRemoved] = useState<SignerKey | null>(null);
  const [name, setName] = useState("");
  const [pem, setPem] = useState("");
  return (
    <>
      <div className="mb-4 flex justify-end">
        <Button look="primary" onClick={() => setOpen(true)} disabledReason={lack}>
          Trust a key
        </Button>
      </div>
      <DataTable
        label="Signer keys"
        columns={[
          { head: "Name", narrow: "line", cell: (each) => <span className="font-medium">{each.name}</span> },
          {
            head: "State",
            cell: (each) => <Status kind="signer_key" value={each.removed_at ? "removed" : "active"} />,
          },
          {
            head: "Fingerprint",
            narrow: "line",
            cell: (each) => <span className="font-mono text-xs break-all">{each.fingerprint}</span>,
          },
          {
            head: "Of",
            cell: (each) => <span className="text-muted">{each.tenant_id ? "the tenant" : "the platform"}</span>,
          },
          {
            head: "Added",
            cell: (each) => <span className="text-muted">{each.created_at && <Ago at={each.created_at} />}</span>,
          },
          {
            head: "Actions",
            cell: (each) =>
              !each.removed_at && (
                <Button
                  look="danger"
                  onClick={() => setRemoved(each)}
                  disabledReason={
                    lack ?? (place.scope === "tenant" && !each.tenant_id ? "it belongs to the platform" : undefined)
                  }
                >
                  Remove
                </Button>
              ),
          },
        ]}
        query={useQuery(signerKeys(place, cursor))}
        rowKey={(each) => each.id}
        pages={{ cursor, go }}
        empty={
          <Empty title="No signer's key is trusted" command={`mooring signer-keys add ${flagOf(place)}`}>
            Where the policy wants signatures, only artifacts that a trusted key signed can be used.
          </Empty>
        }
      />
      {isOpen && (
        <ActionDialog
          title="Trust a key"
          confirm="Trust it"
          command={`mooring signer-keys add ${flagOf(place)} --name ${name || "NAME"} --public-key-pem @key.pub`}
          close={() => setOpen(false)}
          act={async (key) => {
            await answer(
              apiAt(place).POST("/api/v1/tenants/{tenant_id}/signer-keys", {
                params: { path: HERE, header: { "Idempotency-Key": key } },
                body: { name, public_key_pem: pem },
              }),
            );
            await queries.invalidateQueries({ queryKey: ["signer-keys"] });
          }}
        >
          <p>To rotate a key: add the new one, sign with it, and remove the old one.</p>
          <TextField label="Name" value={name} onChange={setName} required maxLength={40} />
          <TextField
            label="Public key"
            value={pem}
            onChange={setPem}
            required
            rows={5}
            placeholder="-----BEGIN PUBLIC KEY-----"
          />
        </ActionDialog>
      )}
      {removed && <RemoveKey place={place} signer={removed} close={() => setRemoved(null)} />}
    </>
  );
}

function RemoveKey({ place, signer, close }: { place: Place; signer: SignerKey; close: () => void }) {
  const queries = useQueryClient();
  const impact = useQuery(signerKeyImpact(place, signer.id));
  const [seen, setSeen] = useState(false);
  return (
    <ActionDialog
      title={`Stop trusting ${signer.name}?`}
      confirm="Remove it"
      danger
      command={`mooring signer-keys remove ${flagOf(place)} ${signer.name}`}
      close={close}
      act={async (key) => {
        await answer(
          apiAt(place).DELETE("/api/v1/tenants/{tenant_id}/signer-keys/{signer_key_id}", {
            params: { path: { ...HERE, signer_key_id: signer.id }, header: { "Idempotency-Key": key } },
          }),
        );
        await queries.invalidateQueries({ queryKey: ["signer-keys"] });
      }}
    >
      <p>Where signatures are required, artifacts that only this key signed are not verified any more.</p>
      {impact.error ? (
        <ProblemBox error={impact.error} />
      ) : impact.data ? (
        <>
          <Impact impact={impact.data} />
          <CheckField label="I saw what it affects" checked={seen} onChange={setSeen} required />
        </>
      ) : (
        <Skeleton rows={2} />
      )}
    </ActionDialog>
  );
}
