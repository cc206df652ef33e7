/** What can be launched, and what it costs. */
import { queryOptions } from "@tanstack/react-query";
import { answer, api } from "../client";
import { REFERENCE_MS, WHOLE } from "./timing";

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

/** One version of an app, with its components, actions and the schema of its configuration. */
export const catalogVersion = (projectId: string, appId: string, versionId: string) =>
  queryOptions({
    queryKey: ["catalog-version", projectId, versionId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/catalog/{app_id}/versions/{catalog_version_id}", {
          params: { path: { project_id: projectId, app_id: appId, catalog_version_id: versionId } },
        }),
      ),
    staleTime: REFERENCE_MS,
  });

export const catalogVersions = (projectId: string, appId: string) =>
  queryOptions({
    queryKey: ["catalog-versions", projectId, appId],
    queryFn: () =>
      answer(
        api.GET("/api/v1/projects/{project_id}/catalog/{app_id}/versions", {
          params: { path: { project_id: projectId, app_id: appId }, query: { limit: WHOLE } },
        }),
      ),
    staleTime: 60_000,
  });

/** The server's plan for a launch with nothing but defaults. */
export const defaultPlan = (projectId: string, app: string) =>
  queryOptions({
    queryKey: ["plan", projectId, app, "default"],
    queryFn: () =>
      answer(
        api.POST("/api/v1/projects/{project_id}/app-instances:plan", {
          params: { path: { project_id: projectId } },
          body: {
            app,
            name: "planned",
            config: {},
            operating_mode: "tenant_dedicated",
            control_plane_scope: "project",
            secrets: {},
          },
        }),
      ),
    retry: false,
  });
