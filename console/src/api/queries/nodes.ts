/** The machines, as the platform's staff sees them. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, api, type Schemas } from "../client";
import { LIVE_MS, PAGE_SIZE, WHOLE } from "./timing";

export type Node = Schemas["NodeView"];
export type NodeDetail = Schemas["NodeDetail"];

export interface NodeFilter {
  status?: Schemas["NodeState"];
  region?: string;
  reachable?: boolean;
  cursor?: string;
}

export const nodes = (filter: NodeFilter, limit = WHOLE) =>
  queryOptions({
    queryKey: ["nodes", filter, limit],
    queryFn: () => answer(api.GET("/api/v1/platform/nodes", { params: { query: { ...filter, limit } } })),
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });

export const node = (nodeId: string) =>
  queryOptions({
    queryKey: ["node", nodeId],
    queryFn: () => answer(api.GET("/api/v1/platform/nodes/{node_id}", { params: { path: { node_id: nodeId } } })),
    refetchInterval: LIVE_MS,
    retry: false,
  });

export const nodeTasks = (nodeId: string, cursor: string | undefined) =>
  queryOptions({
    queryKey: ["node", nodeId, "tasks", cursor],
    queryFn: () =>
      answer(
        api.GET("/api/v1/platform/nodes/{node_id}/tasks", {
          params: { path: { node_id: nodeId }, query: { cursor, limit: PAGE_SIZE } },
        }),
      ),
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });

/** Who is on a machine: that it is taken, and by which tenant, never what runs there. */
export const occupancy = (nodeId: string) =>
  queryOptions({
    queryKey: ["node", nodeId, "occupancy"],
    queryFn: () =>
      answer(api.GET("/api/v1/platform/allocations", { params: { query: { node_id: nodeId, limit: WHOLE } } })),
    refetchInterval: LIVE_MS,
  });

export const enrolmentTokens = (cursor: string | undefined) =>
  queryOptions({
    queryKey: ["enrolment-tokens", cursor],
    queryFn: () =>
      answer(api.GET("/api/v1/platform/nodes/enrolment-tokens", { params: { query: { cursor, limit: PAGE_SIZE } } })),
    refetchInterval: LIVE_MS,
  });

export const tenants = queryOptions({
  queryKey: ["tenants"],
  queryFn: () => answer(api.GET("/api/v1/tenants", { params: { query: { limit: WHOLE } } })),
  staleTime: 60_000,
});
