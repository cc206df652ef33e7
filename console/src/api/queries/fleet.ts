/** Where it runs: receipts of nodes, endpoints. */
import { queryOptions } from "@tanstack/react-query";
import { answer, api, type Schemas } from "../client";
import { LIVE_MS, REFERENCE_MS, WHOLE } from "./timing";

export const endpoints = (projectId: string) =>
  queryOptions({
    queryKey: ["endpoints", projectId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/endpoints", {
          params: { path: { project_id: projectId }, query: { limit: 200 } },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

/** A receipt with the key and the part of the chain that prove it. */
export const receiptBundle = (projectId: string, receiptId: string) =>
  queryOptions({
    queryKey: ["receipt", receiptId, "bundle"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/receipts/{receipt_id}/export", {
          params: { path: { project_id: projectId, receipt_id: receiptId } },
        }),
      ),
    staleTime: REFERENCE_MS,
  });

export const allocations = (projectId: string) =>
  queryOptions({
    queryKey: ["allocations", projectId, "whole"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/allocations", {
          params: { path: { project_id: projectId }, query: { limit: WHOLE } },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

interface Wanted {
  sku: string | undefined;
  shape: string | null;
  gpu_count: number | undefined;
  count: number;
}

/** Whether so much more of a SKU fits now, and what would help if not. */
export const fit = (projectId: string, { sku, shape, ...rest }: Wanted) =>
  queryOptions({
    queryKey: ["fit", projectId, sku, shape, rest],
    queryFn: () =>
      answer(
        api.POST("/api/v1/projects/{project_id}/allocations/explain", {
          params: { path: { project_id: projectId } },
          body: { sku: sku ?? "", shape: shape as Schemas["CapacityShape"], ...rest },
        }),
      ),
    enabled: sku !== undefined && shape !== null,
    retry: false,
  });
