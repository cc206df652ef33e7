/** The addresses of what it cost: billing, statements, prices. */
import { createRoute, lazyRouteComponent } from "@tanstack/react-router";
import { oneOf, type Search, shell, text } from "./frame";

export const STEPS = ["day", "hour"] as const;
const MONTH = /^20\d\d-(0[1-9]|1[0-2])$/;
const month = (value: unknown): string | undefined => (MONTH.test(text(value) ?? "") ? text(value) : undefined);

export const COST_BY = ["project", "app", "instance", "sku", "unit", "member", "allocation"] as const;
export const OVERVIEW_BY = ["tenant", "app", "sku", "unit"] as const;
export const STATEMENT_BY = ["project", "app", "instance", "sku", "unit"] as const;
export const LATE_STATES = ["open", "accepted", "rejected"] as const;
export const PRICE_TABS = ["prices", "meters"] as const;
export const PRICE_ITEMS = ["sku", "unit"] as const;
export const BILLING_TABS = ["cost", "budgets", "statements", "corrections", "late usage", "prove"] as const;
export const PLATFORM_BILLING_TABS = ["overview", "statements", "prove"] as const;

export interface BillingSearch {
  tab?: (typeof BILLING_TABS)[number];
  project?: string;
  month?: string;
  by?: (typeof COST_BY)[number];
  step?: (typeof STEPS)[number];
  late?: (typeof LATE_STATES)[number];
  cursor?: string;
}

const billing = createRoute({
  getParentRoute: () => shell,
  path: "/billing",
  validateSearch: (search: Search): BillingSearch => ({
    tab: oneOf(search.tab, BILLING_TABS),
    project: text(search.project),
    month: month(search.month),
    by: oneOf(search.by, COST_BY),
    step: oneOf(search.step, STEPS),
    late: oneOf(search.late, LATE_STATES),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Billing"), "Billing"),
});

const statement = createRoute({
  getParentRoute: () => shell,
  path: "/billing/statements/$id",
  validateSearch: (search: Search): StatementSearch => ({
    by: oneOf(search.by, STATEMENT_BY),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Statement"), "Statement"),
});

export interface StatementSearch {
  by?: (typeof STATEMENT_BY)[number];
  cursor?: string;
}

const prices = createRoute({
  getParentRoute: () => shell,
  path: "/prices",
  validateSearch: (search: Search): PricesSearch => ({
    tab: oneOf(search.tab, PRICE_TABS),
    item: oneOf(search.item, PRICE_ITEMS),
    current: search.current === true || undefined,
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/Prices"), "Prices"),
});

export interface PricesSearch {
  tab?: (typeof PRICE_TABS)[number];
  item?: (typeof PRICE_ITEMS)[number];
  current?: boolean;
  cursor?: string;
}

const platformBilling = createRoute({
  getParentRoute: () => shell,
  path: "/platform-billing",
  validateSearch: (search: Search): PlatformBillingSearch => ({
    tab: oneOf(search.tab, PLATFORM_BILLING_TABS),
    month: month(search.month),
    by: oneOf(search.by, OVERVIEW_BY),
    cursor: text(search.cursor),
  }),
  component: lazyRouteComponent(() => import("../pages/PlatformBilling"), "PlatformBilling"),
});

export interface PlatformBillingSearch {
  tab?: (typeof PLATFORM_BILLING_TABS)[number];
  month?: string;
  by?: (typeof OVERVIEW_BY)[number];
  cursor?: string;
}

export const moneyRoutes = [billing, statement, prices, platformBilling];
