/** What is allowed where: the layers of the policy, what they decide, and the entitlements of projects. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, api, type Schemas } from "../client";
import { apiAt, HERE, keyOf, type Place } from "../place";
import { LIVE_MS, PAGE_SIZE } from "./timing";

export type Entitlement = Schemas["EntitlementView"];
export type Rules = Schemas["RulesBody"];

export const policy = (place: Place) =>
  queryOptions({
    queryKey: ["policy", keyOf(place)],
    queryFn: () => answer(apiAt(place).GET("/api/v1/tenants/{tenant_id}/policy", { params: { path: HERE } })),
    retry: false,
  });

export interface Question {
  source?: string;
  region?: string;
  sku?: string;
  app?: string;
  gpus?: number;
}

export const explained = (place: Place | undefined, question: Question) =>
  queryOptions({
    queryKey: ["policy-explained", place && keyOf(place), question],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/policy/explain", {
          params: { path: HERE, query: question },
        }),
      ),
    enabled: place !== undefined,
    placeholderData: keepPreviousData,
  });

export const entitlements = (projectId: string | undefined, cursor: string | undefined) =>
  queryOptions({
    queryKey: ["entitlements", projectId, cursor],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/entitlements", {
          params: { path: { project_id: projectId ?? "" }, query: { cursor, limit: PAGE_SIZE } },
        }),
      ),
    enabled: projectId !== undefined,
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });
