/** What can be launched, and what it costs. */
import { queryOptions } from "@tanstack/react-query";
import { answer, api } from "../client";

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
