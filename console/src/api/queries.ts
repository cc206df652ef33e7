/** What the pages read: one query for each question, named by what it asks. */
import { keepPreviousData, queryOptions, useQuery } from "@tanstack/react-query";
import { answer, api, type Instance, Problem, type Schemas } from "./client";

const REFERENCE_MS = 3_600_000;
const LIVE_MS = 5_000;
export const PAGE_SIZE = 25;

export const whoAmI = queryOptions({
  queryKey: ["whoami"],
  queryFn: () => answer(api.GET("/api/v1/whoami")),
  staleTime: 60_000,
  retry: false,
});

export const reference = queryOptions({
  queryKey: ["reference"],
  queryFn: () => answer(api.GET("/api/v1/reference")),
  staleTime: REFERENCE_MS,
});

export const projects = queryOptions({
  queryKey: ["projects"],
  queryFn: () => answer(api.GET("/api/v1/projects", { params: { query: { limit: 200 } } })),
  staleTime: 60_000,
});

export interface InstanceFilter {
  q?: string;
  status?: Schemas["InstanceState"];
  health?: "healthy" | "degraded" | "unknown";
  attention?: boolean;
  project?: string;
  cursor?: string;
  limit?: number;
}

/** Instances of a project, or of the whole tenant where the caller may list that. */
export function instances(tenantId: string | null | undefined, filter: InstanceFilter) {
  const { attention, project, limit = PAGE_SIZE, ...rest } = filter;
  const query = { ...rest, limit, needs_attention: attention || undefined, sort: "newest" as const };
  return queryOptions({
    queryKey: ["instances", tenantId, filter],
    queryFn: () => {
      const params = { query };
      if (project !== undefined)
        return answer(
          api.GET("/api/v1/projects/{project_id}/app-instances", {
            params: { ...params, path: { project_id: project } },
          }),
        );
      return answer(
        api.GET("/api/v1/tenants/{tenant_id}/app-instances", {
          params: { ...params, path: { tenant_id: tenantId ?? "" } },
        }),
      );
    },
    enabled: project !== undefined || Boolean(tenantId),
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });
}

/** The instance with this id. The URL names no project, so it is looked up: in the tenant, or in each project. */
export function instance(tenantId: string | null | undefined, instanceId: string) {
  return queryOptions({
    queryKey: ["instance", instanceId],
    queryFn: () => findInstance(tenantId, instanceId),
    enabled: tenantId !== undefined,
    refetchInterval: LIVE_MS,
    retry: false,
  });
}

const homes = new Map<string, string>();

async function findInstance(tenantId: string | null | undefined, instanceId: string): Promise<Instance> {
  const known = homes.get(instanceId);
  const candidates = known ? [known] : await projectsWith(tenantId, instanceId);
  for (const projectId of candidates) {
    try {
      const found = await answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}", {
          params: { path: { project_id: projectId, instance_id: instanceId } },
        }),
      );
      homes.set(instanceId, projectId);
      return found;
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 404) throw error;
    }
  }
  throw new Problem(404, "not_found", "Not found", "There is no such workload, or you may not see it.", "", "", {});
}

async function projectsWith(tenantId: string | null | undefined, instanceId: string): Promise<string[]> {
  if (tenantId) {
    try {
      const page = await answer(
        api.GET("/api/v1/tenants/{tenant_id}/app-instances", {
          params: { path: { tenant_id: tenantId }, query: { q: instanceId, limit: 2 } },
        }),
      );
      return page.items.filter((each) => each.id === instanceId).map((each) => each.project_id);
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 0 || error.status === 401) throw error;
    }
  }
  const page = await answer(api.GET("/api/v1/projects", { params: { query: { limit: 200 } } }));
  return page.items.map((each) => each.id);
}

type Here = { project_id: string; id: string };
const place = (here: Here) => ({ project_id: here.project_id, instance_id: here.id });

export const why = (here: Here) =>
  queryOptions({
    queryKey: ["instance", here.id, "why"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/why", { params: { path: place(here) } }),
      ),
    refetchInterval: LIVE_MS,
  });

export const members = (here: Here) =>
  queryOptions({
    queryKey: ["instance", here.id, "members"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/members", {
          params: { path: place(here), query: { limit: 200 } },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

export const operations = (here: Here) =>
  queryOptions({
    queryKey: ["instance", here.id, "operations"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/operations", {
          params: { path: place(here), query: { limit: 50 } },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

export const closingRecords = (here: Here) =>
  queryOptions({
    queryKey: ["instance", here.id, "closing"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/closing-records", {
          params: { path: place(here), query: { limit: 200 } },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

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

export const catalog = (projectId: string | undefined) =>
  queryOptions({
    queryKey: ["catalog", projectId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/catalog", {
          params: { path: { project_id: projectId ?? "" }, query: { limit: 200 } },
        }),
      ),
    enabled: projectId !== undefined,
  });

export const skus = queryOptions({
  queryKey: ["skus"],
  queryFn: () => answer(api.GET("/api/v1/skus", { params: { query: { limit: 200 } } })),
});

export interface Scope {
  tenant: string | null | undefined;
  project: string | undefined;
}

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

/** The meaning of a state, an event type or an action key, in the words of the server's reference. */
export function useMeaning(): (kind: string, word: string) => string | undefined {
  const { data } = useQuery(reference);
  return (kind, word) => {
    if (kind === "event") return data?.event_types[word];
    if (kind === "action") return data?.actions.find((each) => each.key === word)?.meaning;
    return data?.lifecycles.find((each) => each.name === kind)?.states[word];
  };
}
