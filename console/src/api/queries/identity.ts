/** Who is signed in, and where they may work. */
import { queryOptions } from "@tanstack/react-query";
import { answer, api } from "../client";

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
