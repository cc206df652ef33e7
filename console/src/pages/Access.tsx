/** Who may do what in the tenant, why, and by which way they come in. */
import { useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { whoAmI } from "../api/queries/identity";
import { useTitle } from "../parts/title";
import { Empty, PageHead } from "../parts/ui";
import { ACCESS_TABS } from "../routes/identity";
import { Accounts } from "./access/Accounts";
import { People } from "./access/People";
import { Roles } from "./access/Roles";
import { WaysIn } from "./access/WaysIn";

const LABELS = { people: "People", accounts: "Service accounts", roles: "Roles", "ways-in": "Ways in" };

export function Access() {
  useTitle("Access");
  const { tab = "people" } = useSearch({ from: "/shell/access" });
  const tenantId = useQuery(whoAmI).data?.tenant_id;
  return (
    <>
      <PageHead title="Access" sub="Who may do what here, why, and how they sign in." />
      <nav aria-label="Parts of this page" className="mb-5 flex gap-1 overflow-x-auto border-b border-line">
        {ACCESS_TABS.map((each) => (
          <Link
            key={each}
            to="/access"
            search={{ tab: each }}
            aria-current={each === tab ? "page" : undefined}
            className="-mb-px border-b-2 border-transparent px-3 py-2 font-medium whitespace-nowrap text-muted hover:text-ink aria-[current=page]:border-accent aria-[current=page]:text-ink"
          >
            {LABELS[each]}
          </Link>
        ))}
      </nav>
      {!tenantId ? (
        <Empty title="You belong to no tenant" command="mooring users list">
          Staff of the platform see its own users and roles on the command line.
        </Empty>
      ) : tab === "people" ? (
        <People tenantId={tenantId} />
      ) : tab === "accounts" ? (
        <Accounts />
      ) : tab === "roles" ? (
        <Roles tenantId={tenantId} />
      ) : (
        <WaysIn tenantId={tenantId} />
      )}
    </>
  );
}
