/**
 * Where something belongs: the platform, a tenant or a project. The server has the same endpoints for all three; the
 * client of a place takes the address of the tenant's, and asks the place's.
 */
import createClient from "openapi-fetch";
import { CLIENT_OPTIONS } from "./client";
import type { paths } from "./schema";

export interface Place {
  scope: "platform" | "tenant" | "project";
  id: string;
}

/** What a tenant's endpoint wants in its path; the place's own address replaces it. */
export const HERE = { tenant_id: "" };

export function addressOf({ scope, id }: Place): string {
  return scope === "platform" ? "/api/v1/platform" : `/api/v1/${scope}s/${encodeURIComponent(id)}`;
}

/** The option of a command that names the place. */
export function flagOf({ scope, id }: Place): string {
  return scope === "platform" ? "--platform" : `--${scope} ${id}`;
}

export function keyOf({ scope, id }: Place): string {
  return `${scope} ${id}`;
}

export function apiAt(place: Place) {
  return createClient<paths>({
    ...CLIENT_OPTIONS,
    pathSerializer: (path, values) =>
      path
        .replace("/api/v1/tenants/{tenant_id}", addressOf(place))
        .replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(values[name]))),
  });
}
