/** Who is signed in, who may do what where, and the ways in. */
import { queryOptions } from "@tanstack/react-query";
import { answer, api, type Schemas } from "../client";

export const whoAmI = queryOptions({
  queryKey: ["whoami"],
  queryFn: () => answer(api.GET("/api/v1/whoami")),
  staleTime: 60_000,
  retry: false,
});

export const projects = queryOptions({
  queryKey: ["projects"],
  queryFn: () => answer(api.GET("/api/v1/projects", { params: { query: { limit: 200 } } })),
  staleTime: 60_000,
});

export interface Scope {
  tenant: string | null | undefined;
  project: string | undefined;
}

/** How people of a tenant can sign in here; without one, staff of the platform. */
export const signInMethods = (tenant: string) =>
  queryOptions({
    queryKey: ["sign-in-methods", tenant],
    queryFn: () => answer(api.GET("/api/v1/sign-in/methods", { params: { query: tenant === "" ? {} : { tenant } } })),
    staleTime: 60_000,
    retry: false,
  });

/** The caller's own sessions and personal tokens, the newest first. */
export const ownTokens = queryOptions({
  queryKey: ["tokens"],
  queryFn: async () => {
    const page = await answer(api.GET("/api/v1/tokens", { params: { query: { limit: 500 } } }));
    return { ...page, items: page.items.toReversed() };
  },
});

export const ownPasskeys = queryOptions({
  queryKey: ["passkeys"],
  queryFn: () => answer(api.GET("/api/v1/whoami/passkeys")),
});

const everything = { query: { limit: 500 } };

export const users = (tenantId: string) =>
  queryOptions({
    queryKey: ["users", tenantId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/users", { params: { path: { tenant_id: tenantId }, ...everything } }),
      ),
  });

export const userTokens = (tenantId: string) =>
  queryOptions({
    queryKey: ["user-tokens", tenantId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/user-tokens", {
          params: { path: { tenant_id: tenantId }, ...everything },
        }),
      ),
  });

export type Membership = Schemas["MembershipView"];

/** The roles in the tenant itself, and in each of these projects that the caller may read. */
export const memberships = (tenantId: string, projectIds: string[], isWide: boolean) =>
  queryOptions({
    queryKey: ["memberships", tenantId, projectIds],
    queryFn: async (): Promise<Membership[]> => {
      const lists = await Promise.all([
        isWide
          ? answer(
              api.GET("/api/v1/tenants/{tenant_id}/memberships", {
                params: { path: { tenant_id: tenantId }, ...everything },
              }),
            )
          : undefined,
        ...projectIds.map((id) =>
          answer(
            api.GET("/api/v1/projects/{project_id}/memberships", {
              params: { path: { project_id: id }, ...everything },
            }),
          ),
        ),
      ]);
      return lists.flatMap((each) => each?.items ?? []);
    },
  });

export const serviceAccounts = (projectIds: string[]) =>
  queryOptions({
    queryKey: ["service-accounts", projectIds],
    queryFn: async () => {
      const lists = await Promise.all(
        projectIds.map((id) =>
          answer(
            api.GET("/api/v1/projects/{project_id}/service-accounts", {
              params: { path: { project_id: id }, ...everything },
            }),
          ),
        ),
      );
      return { items: lists.flatMap((each) => each.items) };
    },
  });

export const accountKeys = (projectId: string, accountId: string) =>
  queryOptions({
    queryKey: ["account-keys", accountId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/service-accounts/{service_account_id}/keys", {
          params: { path: { project_id: projectId, service_account_id: accountId } },
        }),
      ),
  });

export const sourceNetworks = (tenantId: string) =>
  queryOptions({
    queryKey: ["source-networks", tenantId],
    queryFn: () =>
      answer(api.GET("/api/v1/tenants/{tenant_id}/source-networks", { params: { path: { tenant_id: tenantId } } })),
  });

export const identityProviders = (tenantId: string) =>
  queryOptions({
    queryKey: ["identity-providers", tenantId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/tenants/{tenant_id}/identity-providers", {
          params: { path: { tenant_id: tenantId }, ...everything },
        }),
      ),
  });
