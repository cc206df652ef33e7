/** What can be done with a webhook: test it, pause it, give it a new key, delete it. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, type Schemas } from "../api/client";
import { apiAt, flagOf, HERE, type Place } from "../api/place";
import type { Webhook } from "../api/queries/records";
import { announce } from "./announcer";
import { ActionDialog } from "./Dialog";
import { useLack } from "./place";
import { Button } from "./ui";
import { SigningKey } from "./WebhookDialogs";

type Verb = "rotate" | "delete";

export function WebhookActions({ place, webhook }: { place: Place; webhook: Webhook }) {
  const queries = useQueryClient();
  const lack = useLack(place);
  const [open, setOpen] = useState<Verb | null>(null);
  const [made, setMade] = useState<string | null>(null);
  const [outcome, setOutcome] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const path = { ...HERE, webhook_id: webhook.id };
  const refresh = () => queries.invalidateQueries({ queryKey: ["webhooks"] });
  const at = apiAt(place);
  const say = (text: string) => {
    setOutcome(text);
    announce(text);
  };
  const test = async () => {
    setBusy(true);
    try {
      const tested = await answer(
        at.POST("/api/v1/tenants/{tenant_id}/webhooks/{webhook_id}/test", { params: { path } }),
      );
      say(outcomeOf(tested));
    } catch (failure) {
      say(failure instanceof Error ? failure.message : String(failure));
    } finally {
      setBusy(false);
    }
  };
  const pause = async () => {
    try {
      await answer(
        at.PATCH("/api/v1/tenants/{tenant_id}/webhooks/{webhook_id}", {
          params: { path },
          body: { enabled: !webhook.enabled, revision: webhook.revision },
        }),
      );
      await refresh();
    } catch (failure) {
      say(failure instanceof Error ? failure.message : String(failure));
    }
  };
  return (
    <div className="flex flex-wrap items-center gap-1">
      <Button onClick={() => void test()} disabled={isBusy} disabledReason={lack("webhook.update")}>
        {isBusy ? "Sending…" : "Test"}
      </Button>
      <Button onClick={() => void pause()} disabledReason={lack("webhook.update")}>
        {webhook.enabled ? "Pause" : "Resume"}
      </Button>
      <Button onClick={() => setOpen("rotate")} disabledReason={lack("webhook.update")}>
        New key
      </Button>
      <Button look="danger" onClick={() => setOpen("delete")} disabledReason={lack("webhook.delete")}>
        Delete
      </Button>
      {outcome && <p className="w-full text-xs text-muted">{outcome}</p>}
      {open === "rotate" && (
        <ActionDialog
          title="Give this webhook a new key?"
          confirm="Make a new key"
          command={`mooring webhooks rotate-key ${flagOf(place)} ${webhook.id}`}
          close={() => setOpen(null)}
          act={async (key) => {
            const rotated = await answer(
              at.POST("/api/v1/tenants/{tenant_id}/webhooks/{webhook_id}/rotate-key", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            setMade(rotated.signing_key);
          }}
        >
          <p>Messages are signed with both keys for a time, so that the receiver can change without a gap.</p>
        </ActionDialog>
      )}
      {open === "delete" && (
        <ActionDialog
          title="Delete this webhook?"
          confirm="Delete it"
          danger
          command={`mooring webhooks delete ${flagOf(place)} ${webhook.id}`}
          close={() => setOpen(null)}
          act={async (key) => {
            await answer(
              at.DELETE("/api/v1/tenants/{tenant_id}/webhooks/{webhook_id}", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            await refresh();
          }}
        >
          <p>
            Nothing is sent to <b className="break-all">{webhook.url}</b> any more, and its undelivered messages are
            lost.
          </p>
        </ActionDialog>
      )}
      {made && <SigningKey secret={made} close={() => setMade(null)} />}
    </div>
  );
}

function outcomeOf({ delivered, status, error, seconds }: Schemas["WebhookTested"]): string {
  const after = `after ${seconds.toFixed(2)} s`;
  if (delivered) return `The receiver answered ${status} ${after}.`;
  return `It was not delivered: ${error ?? `the receiver answered ${status}`} ${after}.`;
}
