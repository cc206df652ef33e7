/** What happened. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, api, type Schemas } from "../client";
import { apiAt, HERE, keyOf, type Place } from "../place";
import type { Scope } from "./identity";
import { LIVE_MS, PAGE_SIZE, WHOLE } from "./timing";

export const recentEvents = ({ tenant, project }: Scope) =>
  queryOptions({
    queryKey: ["events", tenant, project],
    queryFn: () => {
      const query = { newest: true, limit: 100 };
      return project === undefined
        ? answer(
            api.GET("/api/v1/tenants/{tenant_id}/events", { params: { path: { tenant_id: tenant ?? "" }, query } }),
          )
        : answer(api.GET("/api/v1/projects/{project_id}/events", { params: { path: { project_id: project }, query } }));
    },
    enabled: project !== undefined || Boolean(tenant),
    refetchInterval: LIVE_MS,
  });

export interface AuditFilter {
  actor_id?: string;
  actor_kind?: "user" | "service_account" | "node" | "system" | "anonymous";
  action?: string;
  outcome?: string;
  subject_id?: string;
  correlation_id?: string;
  since?: string;
  until?: string;
  cursor?: string;
}

export const audit = (place: Place | undefined, filter: AuditFilter, limit = PAGE_SIZE) =>
  queryOptions({
    queryKey: ["audit", place && keyOf(place), filter, limit],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/audit", {
          params: { path: HERE, query: { ...filter, limit } },
        }),
      ),
    enabled: place !== undefined,
    placeholderData: keepPreviousData,
  });

/** The events of one request, the oldest first. */
export const eventsOf = (place: Place | undefined, correlationId: string) =>
  queryOptions({
    queryKey: ["events-of", place && keyOf(place), correlationId],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/events", {
          params: { path: HERE, query: { correlation_id: correlationId, limit: WHOLE } },
        }),
      ),
    enabled: place !== undefined,
    refetchInterval: LIVE_MS,
  });

/** How the hash chain of a tenant or of the platform stands. */
export const auditChain = (place: Place | undefined) =>
  queryOptions({
    queryKey: ["audit-chain", place && keyOf(place)],
    queryFn: () =>
      answer(apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/audit/chain", { params: { path: HERE } })),
    enabled: place !== undefined && place.scope !== "project",
    staleTime: 30_000,
  });

export type Webhook = Schemas["WebhookView"];
export type Delivery = Schemas["DeliveryView"];

export const webhooks = (place: Place | undefined, cursor: string | undefined) =>
  queryOptions({
    queryKey: ["webhooks", place && keyOf(place), cursor],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/webhooks", {
          params: { path: HERE, query: { cursor, limit: PAGE_SIZE } },
        }),
      ),
    enabled: place !== undefined,
    refetchInterval: LIVE_MS,
  });

export interface DeliveryFilter {
  status?: Schemas["DeliveryStatus"];
  webhook_id?: string;
  cursor?: string;
}

export const deliveries = (place: Place | undefined, filter: DeliveryFilter) =>
  queryOptions({
    queryKey: ["deliveries", place && keyOf(place), filter],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/deliveries", {
          params: { path: HERE, query: { ...filter, limit: PAGE_SIZE } },
        }),
      ),
    enabled: place !== undefined,
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });

export const breakGlass = (place: Place, cursor: string | undefined) =>
  queryOptions({
    queryKey: ["break-glass", keyOf(place), cursor],
    queryFn: () =>
      answer(
        apiAt(place).GET("/api/v1/tenants/{tenant_id}/break-glass", {
          params: { path: HERE, query: { cursor, limit: PAGE_SIZE } },
        }),
      ),
    refetchInterval: LIVE_MS,
  });
