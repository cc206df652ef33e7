/** Which terminal the page is for: what its address says, and what the API knows about it. */
import { answer, api, newKey, type Schemas } from "../api/client";

/** The command of `mooring exec` without one: the user's shell. */
const SHELL = ["/bin/sh", "-c", "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"];
const ID = /^[a-z]{2,4}_[0-9a-z]{26}$/;

export interface Place {
  projectId: string;
  instanceId: string;
  /** A member of the instance; without one it is the app's own terminal. */
  memberId: string | null;
  terminalId: string | null;
}

export interface Subject {
  instance: Schemas["InstanceView"];
  member: Schemas["MemberView"] | null;
}

/** The place that the address names; null if it names none. */
export function placeOf(location: Location): Place | null {
  const [projectId = "", instanceId = ""] = location.pathname.split("/terminal/")[1]?.split("/") ?? [];
  const query = new URLSearchParams(location.search);
  const memberId = query.get("member");
  const terminalId = query.get("terminal");
  const ids = [projectId, instanceId, memberId ?? projectId, terminalId ?? projectId];
  return ids.every((each) => ID.test(each)) ? { projectId, instanceId, memberId, terminalId } : null;
}

/** Keep the terminal in the address, so that a reload comes back to it. */
export function remember(terminalId: string | null): void {
  const query = new URLSearchParams(location.search);
  if (terminalId === null) query.delete("terminal");
  else query.set("terminal", terminalId);
  history.replaceState(null, "", `${location.pathname}${query.size > 0 ? `?${query}` : ""}`);
}

export function addressOf(place: Place, terminalId: string): string {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  return `${scheme}//${location.host}/api/v1/projects/${place.projectId}/terminals/${terminalId}/ws`;
}

export async function subjectOf(place: Place): Promise<Subject> {
  const path = { project_id: place.projectId, instance_id: place.instanceId };
  const instance = await answer(
    api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}", { params: { path } }),
  );
  if (place.memberId === null) return { instance, member: null };
  const member = await answer(
    api.GET("/api/v1/projects/{project_id}/app-instances/{instance_id}/members/{member_id}", {
      params: { path: { ...path, member_id: place.memberId } },
    }),
  );
  return { instance, member };
}

/** Ask for a terminal: its id, and the ticket that starts it. */
export async function start(place: Place, subject: Subject, size: { columns: number; rows: number }) {
  const header = { "Idempotency-Key": newKey() };
  if (subject.member === null)
    return answer(
      api.POST("/api/v1/projects/{project_id}/app-instances/{instance_id}/exec", {
        params: { path: { project_id: place.projectId, instance_id: place.instanceId }, header },
        body: size,
      }),
    );
  return answer(
    api.POST("/api/v1/projects/{project_id}/allocations/{allocation_id}/exec", {
      params: { path: { project_id: place.projectId, allocation_id: subject.member.allocation_id ?? "" }, header },
      body: { argv: SHELL, label: subject.member.id, ...size },
    }),
  );
}

export async function openTerminals(projectId: string) {
  const path = { project_id: projectId };
  return (await answer(api.GET("/api/v1/projects/{project_id}/terminals", { params: { path } }))).items;
}

export async function end(projectId: string, terminalId: string): Promise<void> {
  const path = { project_id: projectId, terminal_id: terminalId };
  const header = { "Idempotency-Key": newKey() };
  await answer(api.DELETE("/api/v1/projects/{project_id}/terminals/{terminal_id}", { params: { path, header } }));
}

export function commandLine({ instance, member }: Subject): string {
  if (member === null) return `mooring connect ${instance.name} --shell`;
  return `mooring exec ${member.allocation_id} --label ${member.id} -- sh`;
}
