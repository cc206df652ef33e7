/** Every page with its address. What a page filters by stands in the URL, so that it can be shared and reloaded. */
import { createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import { type InstanceFilter, METRIC_RANGES, type MetricRange } from "./api/queries/runtime";
import { catalogRoutes } from "./routes/catalog";
import { fleetRoutes } from "./routes/fleet";
import { oneOf, root, shell, text } from "./routes/frame";
import { identityRoutes } from "./routes/identity";
import { moneyRoutes, STEPS } from "./routes/money";
import { recordsRoutes } from "./routes/records";

const moment = (value: unknown): number | undefined =>
  typeof value === "number" && Number.isSafeInteger(value) && value > 0 ? value : undefined;

const object = (value: unknown): Record<string, unknown> | undefined =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : undefined;
const counts = (value: unknown): Record<string, number> | undefined => {
  const found = Object.entries(object(value) ?? {}).flatMap(([name, each]) => {
    const count = moment(each);
    return count === undefined ? [] : [[name, Math.min(count, 200)] as const];
  });
  return found.length > 0 ? Object.fromEntries(found) : undefined;
};

/** An address inside the console; anything else is dropped, so that no link can lead elsewhere after the sign-in. */
function ownAddress(value: unknown): string | undefined {
  const found = text(value);
  return found?.startsWith("/") && !found.startsWith("//") && !found.includes("\\") ? found : undefined;
}

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  validateSearch: (search: Record<string, unknown>): SignInSearch => ({
    to: ownAddress(search.to),
    problem: text(search.problem)?.slice(0, 64),
    correlation: text(search.correlation)?.slice(0, 64),
  }),
  component: lazyRouteComponent(() => import("./pages/SignIn"), "SignIn"),
});

const home = createRoute({
  getParentRoute: () => shell,
  path: "/",
  component: lazyRouteComponent(() => import("./pages/Home"), "Home"),
});

const operate = createRoute({
  getParentRoute: () => shell,
  path: "/operate",
  component: lazyRouteComponent(() => import("./pages/Operate"), "Operate"),
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

const app = createRoute({
  getParentRoute: () => shell,
  path: "/apps/$app",
  validateSearch: (search: Record<string, unknown>): AppSearch => ({
    project: text(search.project),
    version: text(search.version)?.slice(0, 100),
    compare: text(search.compare)?.slice(0, 100),
  }),
  component: lazyRouteComponent(() => import("./pages/App"), "App"),
});

const launch = createRoute({
  getParentRoute: () => shell,
  path: "/launch/$app",
  validateSearch: (search: Record<string, unknown>): LaunchSearch => ({
    project: text(search.project),
    name: text(search.name)?.slice(0, 40),
    version: text(search.version)?.slice(0, 100),
    sku: text(search.sku)?.slice(0, 60),
    gpus: moment(search.gpus),
    config: object(search.config),
    topology: counts(search.topology),
  }),
  component: lazyRouteComponent(() => import("./pages/Launch"), "Launch"),
});

export const INSTANCE_STATES = ["created", "starting", "running", "stopping", "stopped", "failed"] as const;
export const GROUPINGS = ["app", "project"] as const;
export const HEALTHS = ["healthy", "degraded", "unknown"] as const;

const workloads = createRoute({
  getParentRoute: () => shell,
  path: "/workloads",
  validateSearch: (search: Record<string, unknown>): WorkloadsSearch => ({
    group: oneOf(search.group, GROUPINGS),
    q: text(search.q)?.slice(0, 64),
    status: oneOf(search.status, INSTANCE_STATES),
    health: oneOf(search.health, HEALTHS),
    attention: search.attention === true || undefined,
    project: text(search.project),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("./pages/Workloads"), "Workloads"),
});

export const TABS = [
  "overview",
  "timeline",
  "members",
  "operations",
  "actions",
  "config",
  "logs",
  "metrics",
  "cost",
  "receipts",
] as const;
export const VIEWS = ["story", "waterfall", "raw"] as const;
export type Tab = (typeof TABS)[number];

const workload = createRoute({
  getParentRoute: () => shell,
  path: "/workloads/$id",
  validateSearch: (search: Record<string, unknown>): WorkloadSearch => ({
    tab: oneOf(search.tab, TABS),
    view: oneOf(search.view, VIEWS),
    member: text(search.member),
    step: oneOf(search.step, STEPS),
    kind: text(search.kind),
    actor: text(search.actor),
    entry: text(search.entry),
    pins: Array.isArray(search.pins) ? search.pins.slice(0, 2).flatMap((each) => text(each) ?? []) : undefined,
    begin: moment(search.begin),
    end: moment(search.end),
    range: oneOf(search.range, Object.keys(METRIC_RANGES) as MetricRange[]),
    grep: text(search.grep),
    regex: search.regex === true || undefined,
    line: text(search.line),
  }),
  component: lazyRouteComponent(() => import("./pages/Workload"), "Workload"),
});

export interface WorkloadsSearch extends InstanceFilter {
  group?: (typeof GROUPINGS)[number];
}

export interface AppSearch {
  project?: string;
  version?: string;
  compare?: string;
}

/** What a link can fill in. */
export interface LaunchSearch {
  project?: string;
  name?: string;
  version?: string;
  sku?: string;
  gpus?: number;
  config?: Record<string, unknown>;
  topology?: Record<string, number>;
}

export interface SignInSearch {
  to?: string;
  problem?: string;
  correlation?: string;
}

export interface CatalogSearch {
  project?: string;
  q?: string;
  launchable?: boolean;
}

export interface WorkloadSearch {
  tab?: Tab;
  view?: (typeof VIEWS)[number];
  member?: string;
  step?: (typeof STEPS)[number];
  /** What the timeline shows: a kind of entry, a kind of actor, an open entry, two pinned ones, a range of time. */
  kind?: string;
  actor?: string;
  entry?: string;
  pins?: string[];
  begin?: number;
  end?: number;
  range?: MetricRange;
  /** Of the logs: what is searched, whether that is a pattern, and the line that a link leads to. */
  grep?: string;
  regex?: true;
  line?: string;
}

export const router = createRouter({
  routeTree: root.addChildren([
    signIn,
    shell.addChildren([
      home,
      operate,
      catalog,
      app,
      launch,
      workloads,
      workload,
      ...catalogRoutes,
      ...fleetRoutes,
      ...identityRoutes,
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
