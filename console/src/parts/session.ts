/** Who is signed in, and the project that they work in. */
import { useQuery } from "@tanstack/react-query";
import { projects, type Scope, whoAmI } from "../api/queries/identity";

const KEY = "mooring-project";

/** The project of the URL, otherwise the one used last, otherwise the first. */
export function useProject(named: string | undefined) {
  const { data, error } = useQuery(projects);
  const all = data?.items ?? [];
  const wanted = named ?? localStorage.getItem(KEY);
  const current = all.find((each) => each.id === wanted) ?? all[0];
  return { projects: all, project: current, error, isLoaded: data !== undefined };
}

export function rememberProject(id: string): void {
  localStorage.setItem(KEY, id);
}

export function useTenant(): string | null | undefined {
  return useQuery(whoAmI).data?.tenant_id;
}

/**
 * Where lists are read: the whole tenant where the caller may do that, otherwise one project. The server answers the
 * same for both; only the address differs.
 */
export function useScope(named?: string): Scope {
  const me = useQuery(whoAmI).data;
  const { project } = useProject(named);
  const isWide = me?.tenant_actions.includes("instance.read") ?? true;
  return { tenant: isWide ? me?.tenant_id : null, project: named ?? (isWide ? undefined : project?.id) };
}
