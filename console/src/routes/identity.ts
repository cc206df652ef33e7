/** The addresses of who may do what, and of one's own settings. */
import { createRoute, lazyRouteComponent } from "@tanstack/react-router";
import { oneOf, type Search, shell, text } from "./frame";

export const ACCESS_TABS = ["people", "accounts", "roles", "ways-in"] as const;

export interface AccessSearch {
  tab?: (typeof ACCESS_TABS)[number];
  q?: string;
  project?: string;
  user?: string;
  action?: string;
}

const access = createRoute({
  getParentRoute: () => shell,
  path: "/access",
  validateSearch: (search: Search): AccessSearch => ({
    tab: oneOf(search.tab, ACCESS_TABS),
    q: text(search.q)?.slice(0, 64),
    project: text(search.project),
    user: text(search.user),
    action: text(search.action),
  }),
  component: lazyRouteComponent(() => import("../pages/Access"), "Access"),
});

const settings = createRoute({
  getParentRoute: () => shell,
  path: "/settings",
  component: lazyRouteComponent(() => import("../pages/Settings"), "Settings"),
});

export const identityRoutes = [access, settings] as const;
