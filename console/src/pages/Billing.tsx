/** What is owed, for what, whether it is right, and when the money is gone. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useMoneyScope } from "../parts/moneyScope";
import { ProjectPicker } from "../parts/ProjectPicker";
import { useProject } from "../parts/session";
import { Tabs } from "../parts/Tabs";
import { useTitle } from "../parts/title";
import { PageHead } from "../parts/ui";
import { BILLING_TABS, type BillingSearch } from "../routes/money";
import { Budgets } from "./billing/Budgets";
import { Corrections } from "./billing/Corrections";
import { CostPanels } from "./billing/CostPanels";
import { LateUsage } from "./billing/LateUsage";
import { Prove } from "./billing/Prove";
import { Statements } from "./billing/Statements";

export function Billing() {
  useTitle("Billing");
  const search = useSearch({ from: "/shell/billing" });
  const navigate = useNavigate({ from: "/billing" });
  const scope = useMoneyScope(search.project);
  const { projects } = useProject(search.project);
  const set = (change: BillingSearch) =>
    void navigate({ search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const tab = search.tab ?? "cost";
  return (
    <>
      <PageHead title="Billing" sub="An allocation is charged from active until its release was requested.">
        <ProjectPicker
          projects={projects}
          value={scope.project}
          all={scope.isWide ? "All projects" : undefined}
          onChange={(project) => set({ project })}
        />
      </PageHead>
      <Tabs
        label="Parts of billing"
        tabs={BILLING_TABS}
        current={tab}
        go={(to) => set({ tab: to === "cost" ? undefined : to })}
      />
      {tab === "cost" && <CostPanels scope={scope} search={search} set={set} />}
      {tab === "budgets" && <Budgets scope={scope} />}
      {tab === "statements" && <Statements scope={scope} search={search} set={set} />}
      {tab === "corrections" && <Corrections scope={scope} search={search} set={set} />}
      {tab === "late usage" && <LateUsage projectId={search.project ?? projects[0]?.id} search={search} set={set} />}
      {tab === "prove" && <Prove tenantId={scope.tenant ?? null} isWide={scope.isWide} />}
    </>
  );
}
