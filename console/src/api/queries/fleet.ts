/** Where it runs: receipts of nodes, endpoints. */
import { queryOptions } from "@tanstack/react-query";
import { answer, api } from "../client";
import { LIVE_MS, REFERENCE_MS } from "./timing";

export const receipt = (projectId: string, receiptId: string) =>
  queryOptions({
    queryKey: ["receipt", receiptId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/receipts/{receipt_id}", {
          params: { path: { project_id: projectId, receipt_id: receiptId } },
        }),
      ),
    staleTime: REFERENCE_MS,
  });

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
