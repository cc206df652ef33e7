/** The addresses of what happened: audit, events, webhooks, break-glass. */
import { createRoute, lazyRouteComponent } from "@tanstack/react-router";
import { oneOf, type Search, shell, text } from "./frame";

export const OUTCOMES = ["done", "denied", "hidden", "refused"] as const;
export const ACTOR_KINDS = ["user", "service_account", "node", "system", "anonymous"] as const;

export interface AuditSearch {
  at?: string;
  actor?: string;
  kind?: (typeof ACTOR_KINDS)[number];
  action?: string;
  outcome?: (typeof OUTCOMES)[number];
  target?: string;
  correlation?: string;
  since?: string;
  until?: string;
  cursor?: string;
}

const audit = createRoute({
  getParentRoute: () => shell,
  path: "/audit",
  validateSearch: (search: Search): AuditSearch => ({
    at: text(search.at),
    actor: text(search.actor),
    kind: oneOf(search.kind, ACTOR_KINDS),
    action: text(search.action),
    outcome: oneOf(search.outcome, OUTCOMES),
    target: text(search.target),
    correlation: text(search.correlation),
    since: text(search.since),
    until: text(search.until),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Audit"), "Audit"),
});

export interface EventsSearch {
  at?: string;
  correlation?: string;
  instance?: string;
}

const events = createRoute({
  getParentRoute: () => shell,
  path: "/events",
  validateSearch: (search: Search): EventsSearch => ({
    at: text(search.at),
    correlation: text(search.correlation),
    instance: text(search.instance),
  }),
  component: lazyRouteComponent(() => import("../pages/Events"), "Events"),
});

export const DELIVERY_STATES = ["queued", "claimed", "delivered", "dead"] as const;
export const WEBHOOK_TABS = ["webhooks", "deliveries"] as const;

export interface WebhooksSearch {
  at?: string;
  tab?: (typeof WEBHOOK_TABS)[number];
  status?: (typeof DELIVERY_STATES)[number];
  webhook?: string;
  cursor?: string;
}

const webhooks = createRoute({
  getParentRoute: () => shell,
  path: "/webhooks",
  validateSearch: (search: Search): WebhooksSearch => ({
    at: text(search.at),
    tab: oneOf(search.tab, WEBHOOK_TABS),
    status: oneOf(search.status, DELIVERY_STATES),
    webhook: text(search.webhook),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Webhooks"), "Webhooks"),
});

const breakGlass = createRoute({
  getParentRoute: () => shell,
  path: "/break-glass",
  validateSearch: (search: Search): { cursor?: string } => ({ cursor: text(search.cursor) }),
  component: lazyRouteComponent(() => import("../pages/BreakGlass"), "BreakGlass"),
});

export const recordsRoutes = [audit, events, webhooks, breakGlass] as const;
