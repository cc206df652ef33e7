/** What runs: instances, their members, operations and closing records. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, api, type Instance, newKey, Problem, type Schemas } from "../client";
import { LIVE_MS, PAGE_SIZE, WHOLE } from "./timing";

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

export const instanceSecrets = (here: Here) =>
  queryOptions({
    queryKey: ["instance", here.id, "secrets"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/secrets", {
          params: { path: place(here), query: { limit: WHOLE } },
        }),
      ),
  });

const READ_ACTION_MS = 10_000;
const ACTION_WAIT_SECONDS = 30;
const ENDED = new Set(["succeeded", "failed", "cancelled"]);

/** Runs an action of the app and waits for its end; a failure is thrown with its reason. */
export async function runAction(
  here: Here,
  action: string,
  body: Schemas["StartAction"],
  key: string,
): Promise<Schemas["OperationView"]> {
  let operation = await answer(
    api.POST("/api/v1/projects/{project_id}/app-instances/{instance_id}/actions/{action_name}", {
      params: {
        path: { ...place(here), action_name: action },
        query: { wait: ACTION_WAIT_SECONDS },
        header: { "Idempotency-Key": key },
      },
      body,
    }),
  );
  while (!ENDED.has(operation.status))
    operation = await answer(
      api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/operations/{operation_id}", {
        params: {
          path: { ...place(here), operation_id: operation.id },
          query: { wait: ACTION_WAIT_SECONDS, changed_from: operation.etag },
        },
      }),
    );
  if (operation.status === "succeeded") return operation;
  const detail = operation.failure_detail ?? `The action ${operation.status}.`;
  throw new Problem(
    409,
    operation.failure_code ?? operation.status,
    "The app refused",
    detail,
    "",
    operation.correlation_id,
    {},
  );
}

/** The answer of a read action, read again gently while somebody looks. */
export const readAction = (here: Here, action: string, enabled: boolean) =>
  queryOptions({
    queryKey: ["action", here.id, action],
    queryFn: () => runAction(here, action, { input: {}, member_id: null }, newKey()),
    enabled,
    refetchInterval: READ_ACTION_MS,
    retry: false,
  });

export const whyOperation = (here: Here, operationId: string) =>
  queryOptions({
    queryKey: ["instance", here.id, "operation", operationId, "why"],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/operations/{operation_id}/why", {
          params: { path: { ...place(here), operation_id: operationId } },
        }),
      ),
  });

export const METRIC_RANGES = { "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000 } as const;
export type MetricRange = keyof typeof METRIC_RANGES;
const METRICS_MS = 30_000;

/** What the GPUs of an instance did in the last hour, day or month. */
export const metrics = (here: Here, range: MetricRange) =>
  queryOptions({
    queryKey: ["instance", here.id, "metrics", range],
    queryFn: () => {
      const until = new Date();
      const since = new Date(until.getTime() - METRIC_RANGES[range] * 1_000);
      return answer(
        api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/metrics", {
          params: { path: place(here), query: { since: since.toISOString(), until: until.toISOString() } },
        }),
      );
    },
    refetchInterval: METRICS_MS,
    placeholderData: keepPreviousData,
  });
