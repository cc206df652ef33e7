/** The pages that the navigation and the palette offer, in groups, and for whom each of them is. */
import Boxes from "lucide-react/icons/boxes";
import House from "lucide-react/icons/house";
import LayoutGrid from "lucide-react/icons/layout-grid";
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
      { to: "/", label: "Home", icon: House, letter: "h", isFor: always },
      { to: "/catalog", label: "Catalog", icon: LayoutGrid, letter: "c", isFor: ofTenant },
      { to: "/workloads", label: "Workloads", icon: Boxes, letter: "w", isFor: ofTenant },
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
