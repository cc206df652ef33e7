/** What things cost, and how units of apps are billed. Staff of the platform set both; tenants read their prices. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import type { Schemas } from "../api/client";
import { skus } from "../api/queries/catalog";
import { whoAmI } from "../api/queries/identity";
import { meters, prices } from "../api/queries/money";
import { minorText, priceText, unitText } from "../parts/amount";
import { type Column, DataTable } from "../parts/DataTable";
import { Choice, FilterBar, Switch } from "../parts/Filters";
import { useMissing } from "../parts/moneyScope";
import { useProject } from "../parts/session";
import { Tabs } from "../parts/Tabs";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, Empty, PageHead } from "../parts/ui";
import { PRICE_ITEMS, PRICE_TABS, type PricesSearch } from "../routes/money";
import { MeterDialog } from "./prices/MeterDialog";
import { PriceDialog } from "./prices/PriceDialog";

type Price = Schemas["PriceRecordView"];
type Meter = Schemas["MeterView"];

export function Prices() {
  useTitle("Prices and meters");
  const search = useSearch({ from: "/shell/prices" });
  const navigate = useNavigate({ from: "/prices" });
  const set = (change: PricesSearch) =>
    void navigate({ search: (before) => ({ ...before, cursor: undefined, ...change }) });
  const isStaff = useQuery(whoAmI).data?.tenant_id === null;
  const tab = isStaff ? (search.tab ?? "prices") : "prices";
  return (
    <>
      <PageHead
        title={isStaff ? "Prices and meters" : "Prices"}
        sub="No price is ever changed: it ends where the next one begins. A contract wins over the list."
      >
        {isStaff && <SetButton tab={tab} />}
      </PageHead>
      {isStaff && (
        <Tabs
          label="Prices and meters"
          tabs={PRICE_TABS}
          current={tab}
          go={(to) => set({ tab: to === "prices" ? undefined : to })}
        />
      )}
      {tab === "prices" ? <PriceList search={search} set={set} /> : <MeterList search={search} set={set} />}
    </>
  );
}

function SetButton({ tab }: { tab: "prices" | "meters" }) {
  const [isOpen, setOpen] = useState(false);
  const missing = useMissing(tab === "prices" ? "billing.price.update" : "billing.meter.update");
  return (
    <>
      <Button look="primary" onClick={() => setOpen(true)} disabledReason={missing}>
        {tab === "prices" ? "Add a price" : "Set a meter"}
      </Button>
      {isOpen && tab === "prices" && <PriceDialog close={() => setOpen(false)} />}
      {isOpen && tab === "meters" && <MeterDialog close={() => setOpen(false)} />}
    </>
  );
}

interface ListProps {
  search: PricesSearch;
  set: (change: PricesSearch) => void;
}

function PriceList({ search, set }: ListProps) {
  const me = useQuery(whoAmI).data;
  const { project } = useProject(undefined);
  const isWide = me?.tenant_actions.includes("billing.price.read") ?? false;
  const scope = { tenant: isWide ? me?.tenant_id : null, project: me?.tenant_id && !isWide ? project?.id : undefined };
  const found = useQuery({ ...prices(scope, search), enabled: me !== undefined });
  const known = useQuery(skus);
  const slugs = new Map(known.data?.items.map((each) => [each.id, each.slug]));
  const columns: Column<Price>[] = [
    { head: "Item", narrow: "line", cell: (each) => <ItemName price={each} slug={slugs.get(each.item_key)} /> },
    {
      head: "Book",
      cell: (each) => (each.book === "contract" ? <span className="text-accent">contract</span> : "list"),
    },
    {
      head: "Price",
      isNumber: true,
      cell: (each) => priceText(each.minor, each.per, unitOf(each), each.currency),
    },
    { head: "Terms", narrow: "hidden", cell: (each) => <span className="text-muted">{terms(each) || "plain"}</span> },
    { head: "Holds since", cell: (each) => <Ago at={each.valid_from} /> },
    {
      head: "For what runs",
      narrow: "hidden",
      cell: (each) =>
        each.existing_from ? (
          `from ${each.existing_from.slice(0, 10)} on`
        ) : (
          <span className="text-muted">new only</span>
        ),
    },
  ];
  return (
    <>
      <FilterBar
        isFiltered={search.item !== undefined || search.current !== undefined}
        clear={() => set({ item: undefined, current: undefined })}
      >
        <Choice label="Item" words={PRICE_ITEMS} value={search.item} onChange={(item) => set({ item })} />
        <Switch label="Only what holds now" value={search.current} onChange={(current) => set({ current })} />
      </FilterBar>
      <DataTable
        label="Prices"
        columns={columns}
        query={found}
        rowKey={(each) => each.id}
        empty={
          <Empty title="There is no such price" command="mooring prices list">
            A SKU has its list price from its creation on; units of apps get theirs from the platform's staff.
          </Empty>
        }
        pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
      />
    </>
  );
}

const unitOf = (price: Price): string =>
  price.item === "sku" ? "gpu_second" : (price.item_key.split("/")[1] ?? price.item_key);

function ItemName({ price, slug }: { price: Price; slug: string | undefined }) {
  return (
    <>
      <span className="font-medium">{price.item === "sku" ? (slug ?? price.item_key) : price.item_key}</span>
      <span className="block max-w-xs truncate text-xs text-muted" title={price.reason}>
        {price.reason}
      </span>
    </>
  );
}

function terms(price: Price): string {
  return [
    price.granularity_seconds > 1 && `steps of ${price.granularity_seconds} s`,
    price.minimum_seconds > 0 && `at least ${price.minimum_seconds} s`,
    price.included > 0 && `${price.included.toLocaleString("en")} included a month`,
    ...price.tiers.map((tier) => `above ${tier.above.toLocaleString("en")}: ${minorText(tier.minor, price.currency)}`),
  ]
    .filter(Boolean)
    .join(", ");
}

const BILLING_MEANS: Record<Schemas["Billing"], string> = {
  charged: "charged at its price",
  covered: "covered: the allocation pays for it",
  informative: "informative: costs nothing",
};

function MeterList({ search, set }: ListProps) {
  const found = useQuery(meters(search.cursor));
  const [edited, setEdited] = useState<Meter | null>(null);
  const missing = useMissing("billing.meter.update");
  const columns: Column<Meter>[] = [
    { head: "App", narrow: "line", cell: (each) => <span className="font-medium">{each.app}</span> },
    { head: "Unit", cell: (each) => unitText(each.unit) },
    { head: "Billing", cell: (each) => BILLING_MEANS[each.billing] },
    {
      head: "State",
      cell: (each) => (each.status === "enabled" ? "enabled" : <span className="text-warn">disabled: refused</span>),
    },
    {
      head: "Change",
      cell: (each) => (
        <Button onClick={() => setEdited(each)} disabledReason={missing}>
          Change
        </Button>
      ),
    },
  ];
  return (
    <>
      <DataTable
        label="Meters"
        columns={columns}
        query={found}
        rowKey={(each) => each.id}
        empty={
          <Empty title="No meter was set" command="mooring meters set my-app token_out --billing charged">
            Without a meter a unit costs nothing: it is covered if the app's manifest says so, otherwise informative.
          </Empty>
        }
        pages={{ cursor: search.cursor, go: (cursor) => set({ cursor }) }}
      />
      {edited && <MeterDialog before={edited} close={() => setEdited(null)} />}
    </>
  );
}
