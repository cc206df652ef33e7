/** What needs somebody, what is found by its name, and the operator's counts over all tenants. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, api } from "../client";
import type { Scope } from "./identity";
import { LIVE_MS } from "./timing";

/** What needs somebody: of a project, of the tenant, or for staff of the platform. */
export const attention = ({ tenant, project }: Scope, limit = 50) =>
  queryOptions({
    queryKey: ["attention", tenant, project, limit],
    queryFn: () => {
      const query = { limit };
      if (project !== undefined)
        return answer(
          api.GET("/api/v1/projects/{project_id}/attention", { params: { path: { project_id: project }, query } }),
        );
      return tenant
        ? answer(api.GET("/api/v1/tenants/{tenant_id}/attention", { params: { path: { tenant_id: tenant }, query } }))
        : answer(api.GET("/api/v1/platform/attention", { params: { query } }));
    },
    enabled: tenant !== undefined,
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });

/** Names and ids that begin like the text. */
export const search = (text: string) =>
  queryOptions({
    queryKey: ["search", text],
    queryFn: ({ signal }) => answer(api.GET("/api/v1/search", { params: { query: { q: text } }, signal })),
    enabled: text !== "",
    staleTime: LIVE_MS,
    placeholderData: keepPreviousData,
  });

export const overview = queryOptions({
  queryKey: ["overview"],
  queryFn: () => answer(api.GET("/api/v1/platform/overview")),
  refetchInterval: LIVE_MS,
});

export const appOverviews = queryOptions({
  queryKey: ["overview", "apps"],
  queryFn: () => answer(api.GET("/api/v1/platform/overview/apps", { params: { query: { hours: 24 } } })),
  refetchInterval: LIVE_MS,
});

export const capacity = queryOptions({
  queryKey: ["overview", "capacity"],
  queryFn: () => answer(api.GET("/api/v1/platform/overview/capacity")),
  refetchInterval: LIVE_MS,
});
