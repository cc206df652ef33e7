/** Who is signed in, and the project that they work in. */
import { useQuery } from "@tanstack/react-query";
import { projects, whoAmI } from "../api/queries";

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
