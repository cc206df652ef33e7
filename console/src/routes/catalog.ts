/** The addresses of what may be launched, and why: artifacts, policy, entitlements. */
import { createRoute, lazyRouteComponent } from "@tanstack/react-router";
import { oneOf, type Search, shell, text } from "./frame";

export const ARTIFACT_VIEWS = ["artifacts", "app versions", "sources", "signer keys"] as const;
export const ARTIFACT_KINDS = ["oci", "blob"] as const;

export interface ArtifactsSearch {
  at?: string;
  view?: (typeof ARTIFACT_VIEWS)[number];
  kind?: (typeof ARTIFACT_KINDS)[number];
  app?: string;
  cursor?: string;
}

const artifacts = createRoute({
  getParentRoute: () => shell,
  path: "/artifacts",
  validateSearch: (search: Search): ArtifactsSearch => ({
    at: text(search.at),
    view: oneOf(search.view, ARTIFACT_VIEWS),
    kind: oneOf(search.kind, ARTIFACT_KINDS),
    app: text(search.app),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Artifacts"), "Artifacts"),
});

const artifact = createRoute({
  getParentRoute: () => shell,
  path: "/artifacts/$id",
  validateSearch: (search: Search): { at?: string } => ({ at: text(search.at) }),
  component: lazyRouteComponent(() => import("../pages/Artifact"), "Artifact"),
});

export interface PolicySearch {
  at?: string;
  source?: string;
  region?: string;
  sku?: string;
  app?: string;
  gpus?: number;
}

const policy = createRoute({
  getParentRoute: () => shell,
  path: "/policy",
  validateSearch: (search: Search): PolicySearch => ({
    at: text(search.at),
    source: text(search.source),
    region: text(search.region),
    sku: text(search.sku),
    app: text(search.app),
    gpus: typeof search.gpus === "number" && search.gpus >= 0 ? search.gpus : undefined,
  }),
  component: lazyRouteComponent(() => import("../pages/Policy"), "Policy"),
});

export interface EntitlementsSearch {
  project?: string;
  cursor?: string;
}

const entitlements = createRoute({
  getParentRoute: () => shell,
  path: "/entitlements",
  validateSearch: (search: Search): EntitlementsSearch => ({
    project: text(search.project),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Entitlements"), "Entitlements"),
});

export const catalogRoutes = [artifacts, artifact, policy, entitlements] as const;
