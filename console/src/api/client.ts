/** The console's one way to the server: the public API, with the session cookie that no script can read. */
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Instance = Schemas["InstanceView"];
export type Member = Schemas["MemberView"];
export type Operation = Schemas["OperationView"];
export type CatalogEntry = Schemas["CatalogEntryView"];
export type Plan = Schemas["PlanView"];
export type TimelineEntry = Schemas["TimelineEntry"];

/** A refusal of the server, as its problem document says it. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail: string,
    readonly remedy: string,
    readonly correlationId: string,
    readonly details: Record<string, unknown>,
  ) {
    super(detail);
  }
}

const UNREACHABLE = new Problem(
  0,
  "unreachable",
  "The server does not answer",
  "The connection to the platform is interrupted. What you see may be out of date.",
  "The page tries again by itself.",
  "",
  {},
);

export const CLIENT_OPTIONS = {
  baseUrl: "/",
  credentials: "same-origin",
  headers: { "X-Mooring-Console": "1" },
} as const;

export const api = createClient<paths>(CLIENT_OPTIONS);

interface Reply<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The body of a successful reply; anything else is thrown as a Problem. */
export async function answer<T>(request: Promise<Reply<T>>): Promise<T> {
  let reply: Reply<T>;
  try {
    reply = await request;
  } catch {
    throw UNREACHABLE;
  }
  if (reply.response.ok) return reply.data as T;
  const body = (reply.error ?? {}) as Record<string, unknown>;
  throw new Problem(
    reply.response.status,
    String(body.code ?? "unknown"),
    String(body.title ?? `The server answered ${reply.response.status}`),
    String(body.detail ?? ""),
    String(body.remedy ?? ""),
    String(body.correlation_id ?? reply.response.headers.get("x-correlation-id") ?? ""),
    (body.details ?? {}) as Record<string, unknown>,
  );
}

export function isProblem(error: unknown, status?: number): error is Problem {
  return error instanceof Problem && (status === undefined || error.status === status);
}

/** A key that makes a repeated request one effect; made once, when the form or dialog opens. */
export function newKey(): string {
  return crypto.randomUUID();
}
