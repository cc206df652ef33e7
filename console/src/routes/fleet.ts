/** The addresses of the fleet: allocations, nodes. */
import { createRoute, lazyRouteComponent } from "@tanstack/react-router";
import { oneOf, type Search, shell, text } from "./frame";

export const ALLOCATION_STATES = [
  "requested",
  "provisioning",
  "active",
  "releasing",
  "release_failed",
  "failed",
  "released",
] as const;

export interface AllocationsSearch {
  project?: string;
  status?: (typeof ALLOCATION_STATES)[number];
  group?: string;
  cursor?: string;
}

const allocations = createRoute({
  getParentRoute: () => shell,
  path: "/allocations",
  validateSearch: (search: Search): AllocationsSearch => ({
    project: text(search.project),
    status: oneOf(search.status, ALLOCATION_STATES),
    group: text(search.group),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Allocations"), "Allocations"),
});

export const SHAPES = ["baremetal", "gpu_slice"] as const;

export interface ExplainSearch {
  project?: string;
  sku?: string;
  gpus?: number;
  region?: string;
  count?: number;
  together?: boolean;
}

const whole = (value: unknown): number | undefined =>
  typeof value === "number" && Number.isInteger(value) && value > 0 ? value : undefined;

const explain = createRoute({
  getParentRoute: () => shell,
  path: "/allocations/explain",
  validateSearch: (search: Search): ExplainSearch => ({
    project: text(search.project),
    sku: text(search.sku),
    gpus: whole(search.gpus),
    region: text(search.region),
    count: whole(search.count),
    together: search.together === true || undefined,
  }),
  component: lazyRouteComponent(() => import("../pages/Placement"), "Placement"),
});

const allocation = createRoute({
  getParentRoute: () => shell,
  path: "/allocations/$id",
  validateSearch: (search: Search): { project?: string } => ({ project: text(search.project) }),
  component: lazyRouteComponent(() => import("../pages/Allocation"), "Allocation"),
});

export const NODE_STATES = ["pending", "enrolled", "ready", "draining", "drained", "retired"] as const;
export const NODE_VIEWS = ["map", "table", "tokens"] as const;

export interface NodesSearch {
  view?: (typeof NODE_VIEWS)[number];
  status?: (typeof NODE_STATES)[number];
  region?: string;
  reachable?: boolean;
  cursor?: string;
}

const nodes = createRoute({
  getParentRoute: () => shell,
  path: "/nodes",
  validateSearch: (search: Search): NodesSearch => ({
    view: oneOf(search.view, NODE_VIEWS),
    status: oneOf(search.status, NODE_STATES),
    region: text(search.region),
    reachable: typeof search.reachable === "boolean" ? search.reachable : undefined,
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Nodes"), "Nodes"),
});

const node = createRoute({
  getParentRoute: () => shell,
  path: "/nodes/$id",
  validateSearch: (search: Search): { cursor?: string } => ({ cursor: text(search.cursor) }),
  component: lazyRouteComponent(() => import("../pages/Node"), "Node"),
});

export const fleetRoutes = [allocations, explain, allocation, nodes, node] as const;
