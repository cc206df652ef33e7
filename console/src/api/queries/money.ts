/** What it cost: cost, ledger, statements, budgets, balances, prices and the proof. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, api, type Schemas } from "../client";
import type { Scope } from "./identity";
import { PAGE_SIZE } from "./timing";

const SLOW_MS = 30_000;
const LINES_MAX = 200;
const CHART_LINES_MAX = 2_000;

export type CostBy = Schemas["CostBy"];
export type Cost = Schemas["CostView"];
export type CostLine = Schemas["CostLineView"];
export type Budget = Schemas["BudgetStandingView"];
export type Statement = Schemas["StatementView"];

export interface Period {
  since?: string;
  until?: string;
}

export interface CostQuestion extends Period {
  by: CostBy;
  instanceId?: string;
  cursor?: string;
  limit?: number;
}

/** Whether the caller may ask at all: a scope without a place is not asked. */
const isPlaced = (scope: Scope): boolean => scope.project !== undefined || Boolean(scope.tenant);
const ofProject = (scope: Scope) => ({ project_id: scope.project ?? "" });
const ofTenant = (scope: Scope) => ({ tenant_id: scope.tenant ?? "" });

function readCost(scope: Scope, { by, instanceId, since, until, cursor, limit = LINES_MAX }: CostQuestion) {
  const query = { group_by: by, instance_id: instanceId, since, until, cursor, limit };
  return scope.project === undefined
    ? answer(api.GET("/api/v1/tenants/{tenant_id}/cost", { params: { path: ofTenant(scope), query } }))
    : answer(api.GET("/api/v1/projects/{project_id}/cost", { params: { path: ofProject(scope), query } }));
}

export const cost = (scope: Scope, question: CostQuestion) =>
  queryOptions({
    queryKey: ["cost", scope, question],
    queryFn: () => readCost(scope, question),
    enabled: isPlaced(scope),
    refetchInterval: SLOW_MS,
    placeholderData: keepPreviousData,
  });

/** All lines of a period by time and unit, for a chart; a bounded number of pages. */
export const costOverTime = (scope: Scope, question: CostQuestion) =>
  queryOptions({
    queryKey: ["cost", "chart", scope, question],
    queryFn: async () => {
      const whole = await readCost(scope, question);
      const items = [...whole.items];
      let cursor = whole.next_cursor;
      while (cursor && items.length < CHART_LINES_MAX) {
        const page = await readCost(scope, { ...question, cursor });
        items.push(...page.items);
        cursor = page.next_cursor;
      }
      return { ...whole, items, isCut: Boolean(cursor) };
    },
    enabled: isPlaced(scope),
    refetchInterval: SLOW_MS,
    placeholderData: keepPreviousData,
  });

export const budgets = (scope: Scope) =>
  queryOptions({
    queryKey: ["budgets", scope],
    queryFn: () =>
      scope.project === undefined
        ? answer(api.GET("/api/v1/tenants/{tenant_id}/budgets", { params: { path: ofTenant(scope) } }))
        : answer(api.GET("/api/v1/projects/{project_id}/budgets", { params: { path: ofProject(scope) } })),
    enabled: isPlaced(scope),
    refetchInterval: SLOW_MS,
  });

export const quota = (scope: Scope) =>
  queryOptions({
    queryKey: ["quota", scope],
    queryFn: () =>
      scope.project === undefined
        ? answer(api.GET("/api/v1/tenants/{tenant_id}/quotas", { params: { path: ofTenant(scope) } }))
        : answer(api.GET("/api/v1/projects/{project_id}/quotas", { params: { path: ofProject(scope) } })),
    enabled: isPlaced(scope),
  });

export const balance = (tenantId: string | null | undefined) =>
  queryOptions({
    queryKey: ["balance", tenantId],
    queryFn: () =>
      answer(api.GET("/api/v1/tenants/{tenant_id}/balance", { params: { path: { tenant_id: tenantId ?? "" } } })),
    enabled: Boolean(tenantId),
    refetchInterval: SLOW_MS,
  });

export const payments = (tenantId: string | null | undefined) =>
  queryOptions({
    queryKey: ["payments", tenantId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/payments", {
          params: { path: { tenant_id: tenantId ?? "" }, query: { limit: PAGE_SIZE } },
        }),
      ),
    enabled: Boolean(tenantId),
  });

export const corrections = (scope: Scope, cursor?: string) =>
  queryOptions({
    queryKey: ["corrections", scope, cursor],
    queryFn: () => {
      const query = { kind: "correction" as const, limit: PAGE_SIZE, cursor };
      return scope.project === undefined
        ? answer(api.GET("/api/v1/tenants/{tenant_id}/ledger", { params: { path: ofTenant(scope), query } }))
        : answer(api.GET("/api/v1/projects/{project_id}/ledger", { params: { path: ofProject(scope), query } }));
    },
    enabled: isPlaced(scope),
    placeholderData: keepPreviousData,
  });

export const lateUsage = (projectId: string | undefined, status?: "open" | "accepted" | "rejected", cursor?: string) =>
  queryOptions({
    queryKey: ["late-usage", projectId, status, cursor],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/late-usage", {
          params: { path: { project_id: projectId ?? "" }, query: { status, cursor, limit: PAGE_SIZE } },
        }),
      ),
    enabled: projectId !== undefined,
    placeholderData: keepPreviousData,
  });

export const statements = (tenantId: string | null | undefined, cursor?: string) =>
  queryOptions({
    queryKey: ["statements", tenantId, cursor],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/statements", {
          params: { path: { tenant_id: tenantId ?? "" }, query: { limit: PAGE_SIZE, cursor } },
        }),
      ),
    enabled: Boolean(tenantId),
    placeholderData: keepPreviousData,
  });

const ofStatement = (tenantId: string | null | undefined, id: string) => ({
  tenant_id: tenantId ?? "",
  statement_id: id,
});

export const statement = (tenantId: string | null | undefined, id: string) =>
  queryOptions({
    queryKey: ["statement", id],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/statements/{statement_id}", {
          params: { path: ofStatement(tenantId, id) },
        }),
      ),
    enabled: Boolean(tenantId),
    retry: false,
  });

export const statementGroups = (tenantId: string | null | undefined, id: string, by: Schemas["GroupBy"]) =>
  queryOptions({
    queryKey: ["statement", id, "groups", by],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/statements/{statement_id}/breakdown", {
          params: { path: ofStatement(tenantId, id), query: { group_by: by, limit: LINES_MAX } },
        }),
      ),
    enabled: Boolean(tenantId),
    placeholderData: keepPreviousData,
  });

export const statementLines = (tenantId: string | null | undefined, id: string, cursor?: string) =>
  queryOptions({
    queryKey: ["statement", id, "lines", cursor],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/statements/{statement_id}/lines", {
          params: { path: ofStatement(tenantId, id), query: { cursor, limit: PAGE_SIZE } },
        }),
      ),
    enabled: Boolean(tenantId),
    placeholderData: keepPreviousData,
  });

export interface PriceFilter {
  item?: Schemas["Item"];
  current?: boolean;
  cursor?: string;
}

/** Prices as the caller sees them: staff all of them, a tenant the list and its own contract. */
export const prices = (scope: Scope, { item, current, cursor }: PriceFilter) =>
  queryOptions({
    queryKey: ["prices", scope, item, current, cursor],
    queryFn: () => {
      const query = { item, current, cursor, limit: PAGE_SIZE };
      if (scope.tenant)
        return answer(api.GET("/api/v1/tenants/{tenant_id}/prices", { params: { path: ofTenant(scope), query } }));
      if (scope.project !== undefined)
        return answer(api.GET("/api/v1/projects/{project_id}/prices", { params: { path: ofProject(scope), query } }));
      return answer(api.GET("/api/v1/platform/prices", { params: { query } }));
    },
    enabled: scope.tenant !== undefined,
    placeholderData: keepPreviousData,
  });

export const meters = (cursor?: string) =>
  queryOptions({
    queryKey: ["meters", cursor],
    queryFn: () => answer(api.GET("/api/v1/platform/meters", { params: { query: { cursor, limit: PAGE_SIZE } } })),
    placeholderData: keepPreviousData,
  });

export const billingOverview = (by: Schemas["OverviewBy"], period: Period, cursor?: string) =>
  queryOptions({
    queryKey: ["billing-overview", by, period, cursor],
    queryFn: () =>
      answer(
        api.GET("/api/v1/platform/billing/overview", {
          params: { query: { group_by: by, ...period, cursor, limit: LINES_MAX } },
        }),
      ),
    placeholderData: keepPreviousData,
  });

export const platformStatements = (cursor?: string) =>
  queryOptions({
    queryKey: ["platform-statements", cursor],
    queryFn: () => answer(api.GET("/api/v1/platform/statements", { params: { query: { cursor, limit: PAGE_SIZE } } })),
    placeholderData: keepPreviousData,
  });

/** One step of the proof: a law of tables, or up to 24 hours. */
export function proofStep(tenantId: string | null, cursor: string | undefined) {
  const query = { cursor };
  return tenantId === null
    ? answer(api.GET("/api/v1/platform/billing/proof", { params: { query } }))
    : answer(
        api.GET("/api/v1/tenants/{tenant_id}/billing/proof", { params: { path: { tenant_id: tenantId }, query } }),
      );
}
