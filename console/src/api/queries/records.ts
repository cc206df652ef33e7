/** What happened. */
import { queryOptions } from "@tanstack/react-query";
import { answer, api } from "../client";
import type { Scope } from "./identity";
import { LIVE_MS } from "./timing";

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
