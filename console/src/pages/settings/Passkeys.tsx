/** The person's passkeys: made by the browser, named, and deleted. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { ownPasskeys } from "../../api/queries/identity";
import { announce } from "../../parts/announcer";
import { DataTable } from "../../parts/DataTable";
import { ActionDialog } from "../../parts/Dialog";
import { addPasskey, isCancelled, passkeyHindrance } from "../../parts/passkeys";
import { Labelled } from "../../parts/SchemaForm";
import { Ago } from "../../parts/time";
import { Button, Empty, RowButtons } from "../../parts/ui";

type Passkey = Schemas["PasskeyView"];
type Open = { kind: "add" } | { kind: "rename" | "delete"; passkey: Passkey };

export function Passkeys() {
  const queries = useQueryClient();
  const query = useQuery(ownPasskeys);
  const [open, setOpen] = useState<Open | null>(null);
  const hindrance = passkeyHindrance();
  const done = async (said: string) => {
    announce(said);
    await queries.invalidateQueries(ownPasskeys);
  };
  return (
    <>
      <DataTable
        title="Passkeys"
        label="My passkeys"
        query={query}
        rowKey={(row) => row.id}
        aside={
          <Button onClick={() => setOpen({ kind: "add" })} disabledReason={hindrance}>
            Add a passkey
          </Button>
        }
        empty={
          <Empty title="No passkey yet">
            {hindrance ??
              "With a passkey you sign in by finger, face or code of your device, without a password that somebody could steal."}
          </Empty>
        }
        columns={[
          { head: "Name", cell: (row) => <span className="font-medium">{row.name}</span>, narrow: "line" },
          { head: "Added", cell: (row) => <Ago at={row.created_at} /> },
          {
            head: "Last used",
            cell: (row) =>
              row.last_used_at ? <Ago at={row.last_used_at} /> : <span className="text-muted">never</span>,
          },
          {
            head: "Actions",
            isNumber: true,
            cell: (row) => (
              <RowButtons>
                <Button look="ghost" onClick={() => setOpen({ kind: "rename", passkey: row })}>
                  Rename
                </Button>
                <Button look="ghost" onClick={() => setOpen({ kind: "delete", passkey: row })}>
                  Delete
                </Button>
              </RowButtons>
            ),
          },
        ]}
      />
      {open?.kind === "add" && <Add close={() => setOpen(null)} done={() => done("The passkey is added")} />}
      {open?.kind === "rename" && (
        <Rename passkey={open.passkey} close={() => setOpen(null)} done={() => done("The passkey is renamed")} />
      )}
      {open?.kind === "delete" && (
        <ActionDialog
          title={`Delete the passkey ${open.passkey.name}`}
          confirm="Delete it"
          danger
          command={`mooring passkeys delete ${open.passkey.id}`}
          close={() => setOpen(null)}
          act={async (key) => {
            await answer(
              api.DELETE("/api/v1/whoami/passkeys/{passkey_id}", {
                params: { path: { passkey_id: open.passkey.id }, header: { "Idempotency-Key": key } },
              }),
            );
            await done("The passkey is deleted");
          }}
        >
          <p>
            Nobody can sign in with it any more. Sessions that began with it stay until they end. The device keeps its
            half until you delete it there, too.
          </p>
        </ActionDialog>
      )}
    </>
  );
}

function Add({ close, done }: { close: () => void; done: () => Promise<void> }) {
  const [name, setName] = useState("");
  return (
    <ActionDialog
      title="Add a passkey"
      confirm="Continue"
      command="mooring passkeys list   # a browser makes a passkey; the command line lists and deletes it"
      close={close}
      act={async () => {
        try {
          await addPasskey(name.trim());
        } catch (failure) {
          if (isCancelled(failure)) throw new Error("The browser made no passkey: it was cancelled, or took too long.");
          if (failure instanceof DOMException && failure.name === "InvalidStateError")
            throw new Error("This device has a passkey for your user already.");
          throw failure;
        }
        await done();
      }}
    >
      <p>Your browser asks for your finger, face or code next. The platform stores a public key and no secret.</p>
      <Name id="passkey-name" value={name} change={setName} />
    </ActionDialog>
  );
}

function Rename({ passkey, close, done }: { passkey: Passkey; close: () => void; done: () => Promise<void> }) {
  const [name, setName] = useState(passkey.name);
  return (
    <ActionDialog
      title="Rename the passkey"
      confirm="Rename it"
      command={`mooring passkeys rename ${passkey.id} --name '${name}'`}
      close={close}
      act={async (key) => {
        await answer(
          api.PATCH("/api/v1/whoami/passkeys/{passkey_id}", {
            params: { path: { passkey_id: passkey.id }, header: { "Idempotency-Key": key } },
            body: { name: name.trim() },
          }),
        );
        await done();
      }}
    >
      <Name id="passkey-name" value={name} change={setName} />
    </ActionDialog>
  );
}

function Name({ id, value, change }: { id: string; value: string; change: (value: string) => void }) {
  return (
    <Labelled id={id} label="Name" help="What you recognise it by, such as the device.">
      <input
        id={id}
        className="field"
        required
        maxLength={100}
        value={value}
        onChange={(event) => change(event.target.value)}
      />
    </Labelled>
  );
}
