/** Whose money the caller may read: the whole tenant's, otherwise one project's. */
import { useQuery } from "@tanstack/react-query";
import { type Scope, whoAmI } from "../api/queries/identity";
import { useProject } from "./session";

export function useMoneyScope(named: string | undefined): Scope & { isWide: boolean } {
  const me = useQuery(whoAmI).data;
  const { project } = useProject(named);
  const isWide = me?.tenant_actions.includes("billing.read") ?? false;
  return { tenant: isWide ? me?.tenant_id : null, project: named ?? (isWide ? undefined : project?.id), isWide };
}

/** Why the caller cannot do this; nothing if they can. */
export function useMissing(key: string, projectId?: string): string | undefined {
  const me = useQuery(whoAmI).data;
  const held = [
    me?.platform_actions,
    me?.tenant_actions,
    ...(projectId === undefined ? [] : [me?.project_actions[projectId]]),
  ].some((keys) => keys?.includes(key));
  return held ? undefined : `you need ${key}; an admin can give you a role that has it`;
}
