/** Where events are sent, and what became of each delivery. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer } from "../api/client";
import { apiAt, flagOf, HERE, type Place } from "../api/place";
import { type Delivery, deliveries, type Webhook, webhooks } from "../api/queries/records";
import { type Column, DataTable } from "../parts/DataTable";
import { ActionDialog } from "../parts/Dialog";
import { Choice, FilterBar } from "../parts/Filters";
import { PlacePicker, useLack, usePlace } from "../parts/place";
import { Status } from "../parts/Status";
import { Tabs } from "../parts/Tabs";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, Empty, PageHead, Skeleton } from "../parts/ui";
import { WebhookActions } from "../parts/WebhookActions";
import { CreateWebhook, SigningKey } from "../parts/WebhookDialogs";
import { DELIVERY_STATES, WEBHOOK_TABS, type WebhooksSearch } from "../routes/records";

export function Webhooks() {
  useTitle("Webhooks");
  const search = useSearch({ from: "/shell/webhooks" });
  const navigate = useNavigate({ from: "/webhooks" });
  const { place, word, options } = usePlace(search.at);
  const lack = useLack(place);
  const [isOpen, setOpen] = useState(false);
  const [made, setMade] = useState<string | null>(null);
  const tab = search.tab ?? "webhooks";
  const set = (change: WebhooksSearch) =>
    void navigate({ search: (before) => ({ ...before, cursor: undefined, ...change }) });
  return (
    <>
      <PageHead title="Webhooks" sub="Where events are sent, signed, at least once; and what became of each delivery.">
        <PlacePicker options={options} value={word} onChange={(next) => set({ at: next, webhook: undefined })} />
        <Button look="primary" onClick={() => setOpen(true)} disabledReason={lack("webhook.create")}>
          New webhook
        </Button>
      </PageHead>
      <Tabs
        label="Parts"
        tabs={WEBHOOK_TABS}
        current={tab}
        go={(next) => set({ tab: next === "webhooks" ? undefined : next })}
      />
      {!place ? (
        <Skeleton />
      ) : tab === "webhooks" ? (
        <WebhookList place={place} word={word} cursor={search.cursor} go={(cursor) => set({ cursor })} />
      ) : (
        <DeliveryList place={place} search={search} set={set} />
      )}
      {isOpen && place && <CreateWebhook place={place} made={setMade} close={() => setOpen(false)} />}
      {made && <SigningKey secret={made} close={() => setMade(null)} />}
    </>
  );
}

interface WebhookListProps {
  place: Place;
  word: string | undefined;
  cursor: string | undefined;
  go: (cursor: string | undefined) => void;
}

function WebhookList({ place, word, cursor, go }: WebhookListProps) {
  const columns: Column<Webhook>[] = [
    {
      head: "Address",
      narrow: "line",
      cell: (each) => (
        <>
          <Link
            to="/webhooks"
            search={{ at: word, tab: "deliveries", webhook: each.id }}
            className="font-medium break-all hover:underline"
          >
            {each.url}
          </Link>
          <p className="text-xs text-muted">{each.description}</p>
        </>
      ),
    },
    { head: "State", cell: (each) => <Status kind="webhook" value={each.enabled ? "active" : "paused"} /> },
    {
      head: "Events",
      cell: (each) => (
        <span className="text-muted">{each.event_types.length === 0 ? "all" : each.event_types.join(", ")}</span>
      ),
    },
    {
      head: "Made",
      narrow: "hidden",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.created_at} />
        </span>
      ),
    },
    { head: "Actions", narrow: "line", cell: (each) => <WebhookActions place={place} webhook={each} /> },
  ];
  return (
    <DataTable
      label="Webhooks"
      columns={columns}
      query={useQuery(webhooks(place, cursor))}
      rowKey={(each) => each.id}
      pages={{ cursor, go }}
      empty={
        <Empty title="No event is sent anywhere" command={`mooring webhooks create ${flagOf(place)} --url https://…`}>
          A webhook sends the events of this place to your address, so that nothing has to ask.
        </Empty>
      }
    />
  );
}

interface DeliveryListProps {
  place: Place;
  search: WebhooksSearch;
  set: (change: WebhooksSearch) => void;
}

function DeliveryList({ place, search, set }: DeliveryListProps) {
  const { status, webhook, cursor } = search;
  const known = useQuery(webhooks(place, undefined)).data?.items ?? [];
  const addresses = new Map(known.map((each) => [each.id, each.url]));
  const lack = useLack(place)("outbox.replay");
  const queries = useQueryClient();
  const [one, setOne] = useState<Delivery | null>(null);
  const [isAll, setAll] = useState(false);
  const refresh = () => queries.invalidateQueries({ queryKey: ["deliveries"] });
  return (
    <>
      <FilterBar isFiltered={Boolean(status || webhook)} clear={() => set({ status: undefined, webhook: undefined })}>
        <Choice label="State" words={DELIVERY_STATES} value={status} onChange={(next) => set({ status: next })} />
        <select
          aria-label="Webhook"
          className="field w-auto max-w-72"
          value={webhook ?? ""}
          onChange={(event) => set({ webhook: event.target.value || undefined })}
        >
          <option value="">Webhook: any</option>
          {known.map((each) => (
            <option key={each.id} value={each.id}>
              {each.url}
            </option>
          ))}
        </select>
        <Button onClick={() => setAll(true)} disabledReason={lack}>
          Send dead letters again
        </Button>
      </FilterBar>
      <DataTable
        label="Deliveries"
        columns={deliveryColumns(addresses, lack, setOne)}
        query={useQuery(deliveries(place, { status, webhook_id: webhook, cursor }))}
        rowKey={(each) => each.id}
        pages={{ cursor, go: (next) => set({ cursor: next }) }}
        empty={
          <Empty title="No delivery is like this" command={`mooring outbox list ${flagOf(place)}`}>
            Each event that a webhook wants is one delivery.
          </Empty>
        }
      />
      {one && (
        <ActionDialog
          title="Send this delivery again?"
          confirm="Send it again"
          command={`mooring outbox replay ${flagOf(place)} ${one.id}`}
          close={() => setOne(null)}
          act={async (key) => {
            await answer(
              apiAt(place).POST("/api/v1/tenants/{tenant_id}/deliveries/{delivery_id}/replay", {
                params: { path: { ...HERE, delivery_id: one.id }, header: { "Idempotency-Key": key } },
              }),
            );
            await refresh();
          }}
        >
          <p>
            The receiver gets <b>{one.event_type}</b> once more, with the same webhook-id: it drops it if it had it.
          </p>
        </ActionDialog>
      )}
      {isAll && (
        <ActionDialog
          title="Send all dead letters again?"
          confirm="Send them again"
          command={`mooring outbox replay ${flagOf(place)} --dead`}
          close={() => setAll(false)}
          act={async (key) => {
            await answer(
              apiAt(place).POST("/api/v1/tenants/{tenant_id}/deliveries/replay-dead", {
                params: { path: HERE, header: { "Idempotency-Key": key } },
              }),
            );
            await refresh();
          }}
        >
          <p>Every delivery of this place that failed for good is queued again.</p>
        </ActionDialog>
      )}
    </>
  );
}

function deliveryColumns(
  addresses: Map<string, string>,
  lack: string | undefined,
  replay: (delivery: Delivery) => void,
): Column<Delivery>[] {
  return [
    {
      head: "Event",
      narrow: "line",
      cell: (each) => (
        <>
          <span className="font-medium">{each.event_type}</span>
          <p className="text-xs break-all text-muted">{addresses.get(each.webhook_id) ?? each.webhook_id}</p>
        </>
      ),
    },
    { head: "State", cell: (each) => <Status kind="delivery" value={each.status} /> },
    { head: "Attempts", isNumber: true, cell: (each) => each.attempts },
    {
      head: "Last answer",
      cell: (each) => (
        <span className="text-muted">
          {[each.last_status, each.last_error].filter(Boolean).join(", ") || "none yet"}
        </span>
      ),
    },
    {
      head: "Event and request",
      narrow: "line",
      cell: (each) => (
        <Link to="/events" search={{ correlation: each.correlation_id }} className="link font-mono text-xs break-all">
          {each.correlation_id}
        </Link>
      ),
    },
    {
      head: "Due or done",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.finished_at ?? each.due_at} />
        </span>
      ),
    },
    {
      head: "Actions",
      cell: (each) =>
        (each.status === "dead" || each.status === "delivered") && (
          <Button onClick={() => replay(each)} disabledReason={lack}>
            Send again
          </Button>
        ),
    },
  ];
}
