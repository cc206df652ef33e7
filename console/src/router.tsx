/** Every page with its address. What a page filters by stands in the URL, so that it can be shared and reloaded. */
import { createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import type { InstanceFilter } from "./api/queries/runtime";
import { catalogRoutes } from "./routes/catalog";
import { fleetRoutes } from "./routes/fleet";
import { oneOf, root, shell, text } from "./routes/frame";
import { moneyRoutes, STEPS } from "./routes/money";
import { recordsRoutes } from "./routes/records";

/** An address inside the console; anything else is dropped, so that no link can lead elsewhere after the sign-in. */
function ownAddress(value: unknown): string | undefined {
  const found = text(value);
  return found?.startsWith("/") && !found.startsWith("//") && !found.includes("\\") ? found : undefined;
}

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  validateSearch: (search: Record<string, unknown>): { to?: string } => ({ to: ownAddress(search.to) }),
  component: lazyRouteComponent(() => import("./pages/SignIn"), "SignIn"),
});

const home = createRoute({
  getParentRoute: () => shell,
  path: "/",
  component: lazyRouteComponent(() => import("./pages/Home"), "Home"),
});

const catalog = createRoute({
  getParentRoute: () => shell,
  path: "/catalog",
  validateSearch: (search: Record<string, unknown>): CatalogSearch => ({
    project: text(search.project),
    q: text(search.q),
    launchable: search.launchable === true || undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/Catalog"), "Catalog"),
});

const launch = createRoute({
  getParentRoute: () => shell,
  path: "/launch/$app",
  validateSearch: (search: Record<string, unknown>): { project?: string } => ({ project: text(search.project) }),
  component: lazyRouteComponent(() => import("./pages/Launch"), "Launch"),
});

export const INSTANCE_STATES = ["created", "starting", "running", "stopping", "stopped", "failed"] as const;
export const HEALTHS = ["healthy", "degraded", "unknown"] as const;

const workloads = createRoute({
  getParentRoute: () => shell,
  path: "/workloads",
  validateSearch: (search: Record<string, unknown>): InstanceFilter => ({
    q: text(search.q)?.slice(0, 64),
    status: oneOf(search.status, INSTANCE_STATES),
    health: oneOf(search.health, HEALTHS),
    attention: search.attention === true || undefined,
    project: text(search.project),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("./pages/Workloads"), "Workloads"),
});

export const TABS = ["overview", "timeline", "members", "operations", "logs", "cost", "receipts"] as const;
export type Tab = (typeof TABS)[number];

const workload = createRoute({
  getParentRoute: () => shell,
  path: "/workloads/$id",
  validateSearch: (search: Record<string, unknown>): WorkloadSearch => ({
    tab: oneOf(search.tab, TABS),
    view: oneOf(search.view, ["story", "raw"] as const),
    member: text(search.member),
    step: oneOf(search.step, STEPS),
  }),
  component: lazyRouteComponent(() => import("./pages/Workload"), "Workload"),
});

export interface CatalogSearch {
  project?: string;
  q?: string;
  launchable?: boolean;
}

export interface WorkloadSearch {
  tab?: Tab;
  view?: "story" | "raw";
  member?: string;
  step?: (typeof STEPS)[number];
}

export const router = createRouter({
  routeTree: root.addChildren([
    signIn,
    shell.addChildren([
      home,
      catalog,
      launch,
      workloads,
      workload,
      ...catalogRoutes,
      ...fleetRoutes,
      ...recordsRoutes,
      ...moneyRoutes,
    ]),
  ]),
  basepath: "/console",
  defaultPreload: "intent",
  scrollRestoration: true,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
