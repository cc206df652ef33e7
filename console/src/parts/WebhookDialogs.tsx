/** A new webhook; its signing key is shown once. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer } from "../api/client";
import { apiAt, flagOf, HERE, type Place } from "../api/place";
import { ActionDialog } from "./Dialog";
import { TextField } from "./Fields";
import { ShownOnce } from "./ShownOnce";

interface CreateWebhookProps {
  place: Place;
  /** Gets the signing key, which the server shows only now. */
  made: (secret: string) => void;
  close: () => void;
}

export function CreateWebhook({ place, made, close }: CreateWebhookProps) {
  const queries = useQueryClient();
  const [url, setUrl] = useState("");
  const [types, setTypes] = useState("");
  const [description, setDescription] = useState("");
  const families = types.split(/[\s,]+/).filter(Boolean);
  return (
    <ActionDialog
      title="New webhook"
      confirm="Create it"
      command={`mooring webhooks create ${flagOf(place)} --url ${url || "https://…"}${families.map((each) => ` --event-type '${each}'`).join("")}`}
      close={close}
      act={async (key) => {
        const created = await answer(
          apiAt(place).POST("/api/v1/tenants/{tenant_id}/webhooks", {
            params: { path: HERE, header: { "Idempotency-Key": key } },
            body: { url, event_types: families, description },
          }),
        );
        made(created.signing_key);
        await queries.invalidateQueries({ queryKey: ["webhooks"] });
      }}
    >
      <TextField
        label="Address"
        type="url"
        value={url}
        onChange={setUrl}
        required
        placeholder="https://example.org/hooks"
        help="https, without user, password and fragment."
      />
      <TextField
        label="Event types"
        value={types}
        onChange={setTypes}
        placeholder="instance.* task.failed"
        help="Types, or families such as instance.*; leave it empty for all events of this place."
      />
      <TextField label="Description" value={description} onChange={setDescription} maxLength={200} />
    </ActionDialog>
  );
}

export function SigningKey({ secret, close }: { secret: string; close: () => void }) {
  return (
    <ShownOnce title="The signing key" label="Signing key" secret={secret} close={close}>
      <p className="text-muted">
        With it the receiver checks that a message comes from this platform, in the form of Standard Webhooks.
      </p>
    </ShownOnce>
  );
}
