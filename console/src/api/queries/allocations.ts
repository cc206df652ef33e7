/** What a project holds, and who uses it. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, api, type Schemas } from "../client";
import { LIVE_MS, PAGE_SIZE, WHOLE } from "./timing";

export type Allocation = Schemas["AllocationView"];

export interface AllocationFilter {
  status?: Schemas["AllocationState"];
  group_id?: string;
  cursor?: string;
}

export const allocations = (projectId: string | undefined, filter: AllocationFilter) =>
  queryOptions({
    queryKey: ["allocations", projectId, filter],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/allocations", {
          params: { path: { project_id: projectId ?? "" }, query: { ...filter, limit: PAGE_SIZE } },
        }),
      ),
    enabled: projectId !== undefined,
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });

export const allocation = (projectId: string | undefined, allocationId: string) =>
  queryOptions({
    queryKey: ["allocation", allocationId, projectId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/allocations/{allocation_id}", {
          params: { path: { project_id: projectId ?? "", allocation_id: allocationId } },
        }),
      ),
    enabled: projectId !== undefined,
    refetchInterval: LIVE_MS,
    retry: false,
  });

export const groups = (projectId: string | undefined) =>
  queryOptions({
    queryKey: ["allocation-groups", projectId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/allocation-groups", {
          params: { path: { project_id: projectId ?? "" }, query: { limit: WHOLE } },
        }),
      ),
    enabled: projectId !== undefined,
  });

export interface Use {
  instance: Schemas["InstanceView"];
  members: Schemas["MemberView"][];
}

/** Whose members stand on an allocation: at most one instance uses it at a time. */
export const usesOf = (projectId: string, allocationId: string) =>
  queryOptions({
    queryKey: ["allocation", allocationId, "uses"],
    queryFn: async (): Promise<Use[]> => {
      const using = await answer(
        api.GET("/api/v1/projects/{project_id}/app-instances", {
          params: { path: { project_id: projectId }, query: { allocation_id: allocationId, limit: 5 } },
        }),
      );
      return Promise.all(
        using.items.map(async (instance) => {
          const found = await answer(
            api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/members", {
              params: { path: { project_id: projectId, instance_id: instance.id }, query: { limit: WHOLE } },
            }),
          );
          const members = found.items.filter(
            (each) => each.allocation_id === allocationId && each.status !== "removed",
          );
          return { instance, members };
        }),
      );
    },
    refetchInterval: LIVE_MS,
  });

export const placement = (projectId: string | undefined, body: Schemas["ExplainAllocation"] | undefined) =>
  queryOptions({
    queryKey: ["placement", projectId, body],
    queryFn: () =>
      answer(
        api.POST("/api/v1/projects/{project_id}/allocations/explain", {
          params: { path: { project_id: projectId ?? "" } },
          body: body ?? { shape: "gpu_slice", sku: "" },
        }),
      ),
    enabled: projectId !== undefined && body !== undefined,
    placeholderData: keepPreviousData,
  });
