/** The pages that the navigation and the palette offer, in groups, and for whom each of them is. */
import Activity from "lucide-react/icons/activity";
import BadgeCheck from "lucide-react/icons/badge-check";
import Boxes from "lucide-react/icons/boxes";
import Coins from "lucide-react/icons/coins";
import Gauge from "lucide-react/icons/gauge";
import HardDrive from "lucide-react/icons/hard-drive";
import House from "lucide-react/icons/house";
import KeyRound from "lucide-react/icons/key-round";
import LayoutGrid from "lucide-react/icons/layout-grid";
import Package from "lucide-react/icons/package";
import Receipt from "lucide-react/icons/receipt-text";
import ScrollText from "lucide-react/icons/scroll-text";
import Server from "lucide-react/icons/server";
import ShieldCheck from "lucide-react/icons/shield-check";
import Tag from "lucide-react/icons/tag";
import UserCog from "lucide-react/icons/user-cog";
import Users from "lucide-react/icons/users";
import Webhook from "lucide-react/icons/webhook";
import type { Schemas } from "./api/client";

export interface PageEntry {
  to: string;
  label: string;
  icon: typeof House;
  /** The letter that leads here after `g`. */
  letter: string;
  /** Whether the page is of use to this caller; the server decides what they may read there. */
  isFor: (me: Schemas["WhoAmI"]) => boolean;
}

export interface PageGroup {
  label: string;
  pages: PageEntry[];
}

export const ofTenant = (me: Schemas["WhoAmI"]): boolean => me.tenant_id !== null;
export const ofPlatform = (me: Schemas["WhoAmI"]): boolean => me.platform_actions.length > 0;
export const always = (): boolean => true;

/** Who may do one of these somewhere: in the platform, the tenant or a project of theirs. */
export function may(...keys: string[]): (me: Schemas["WhoAmI"]) => boolean {
  return (me) =>
    [me.platform_actions, me.tenant_actions, ...Object.values(me.project_actions)].some((held) =>
      keys.some((key) => held.includes(key)),
    );
}

export const GROUPS: PageGroup[] = [
  {
    label: "Work",
    pages: [
      { to: "/", label: "Home", icon: House, letter: "h", isFor: ofTenant },
      { to: "/catalog", label: "Catalog", icon: LayoutGrid, letter: "c", isFor: ofTenant },
      { to: "/workloads", label: "Workloads", icon: Boxes, letter: "w", isFor: ofTenant },
      { to: "/allocations", label: "Allocations", icon: HardDrive, letter: "a", isFor: ofTenant },
    ],
  },
  {
    label: "Platform",
    pages: [{ to: "/operate", label: "Overview", icon: Gauge, letter: "o", isFor: ofPlatform }],
  },
  {
    label: "Fleet",
    pages: [{ to: "/nodes", label: "Nodes", icon: Server, letter: "n", isFor: ofPlatform }],
  },
  {
    label: "Trust",
    pages: [
      { to: "/artifacts", label: "Artifacts", icon: Package, letter: "r", isFor: may("artifact.read") },
      { to: "/policy", label: "Policy", icon: ShieldCheck, letter: "p", isFor: may("policy.read") },
      { to: "/entitlements", label: "Entitlements", icon: BadgeCheck, letter: "e", isFor: ofTenant },
    ],
  },
  {
    label: "Records",
    pages: [
      { to: "/audit", label: "Audit", icon: ScrollText, letter: "u", isFor: may("audit.read") },
      { to: "/events", label: "Events", icon: Activity, letter: "v", isFor: may("event.read") },
      { to: "/webhooks", label: "Webhooks", icon: Webhook, letter: "k", isFor: may("webhook.read") },
      { to: "/break-glass", label: "Break-glass", icon: KeyRound, letter: "x", isFor: may("break_glass.read") },
    ],
  },
  {
    label: "Money",
    pages: [
      { to: "/billing", label: "Billing", icon: Receipt, letter: "b", isFor: ofTenant },
      {
        to: "/platform-billing",
        label: "All tenants' billing",
        icon: Coins,
        letter: "m",
        isFor: may("billing.overview.read"),
      },
      { to: "/prices", label: "Prices", icon: Tag, letter: "i", isFor: always },
    ],
  },
  {
    label: "Administration",
    pages: [
      {
        to: "/access",
        label: "Access",
        icon: Users,
        letter: "y",
        isFor: (me) => ofTenant(me) && may("membership.read", "user.read")(me),
      },
      { to: "/settings", label: "My settings", icon: UserCog, letter: "s", isFor: always },
    ],
  },
];

/** The groups with the pages that are of use to this caller. */
export function groupsFor(me: Schemas["WhoAmI"] | undefined): PageGroup[] {
  if (!me) return [];
  return GROUPS.map((group) => ({ ...group, pages: group.pages.filter((page) => page.isFor(me)) })).filter(
    (group) => group.pages.length > 0,
  );
}
