/** A new price of the list, or of a tenant's contract. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { skus } from "../../api/queries/catalog";
import { toMinor } from "../../parts/amount";
import { ActionDialog } from "../../parts/Dialog";
import { Field } from "../../parts/Field";

const asCount = (text: string): number | undefined => (text.trim() === "" ? undefined : Number(text));

export function PriceDialog({ close }: { close: () => void }) {
  const queries = useQueryClient();
  const known = useQuery(skus);
  const [item, setItem] = useState<Schemas["Item"]>("unit");
  const [itemKey, setItemKey] = useState("");
  const [amount, setAmount] = useState("");
  const [currency, setCurrency] = useState("EUR");
  const [per, setPer] = useState("1");
  const [tenant, setTenant] = useState("");
  const [minimum, setMinimum] = useState("");
  const [included, setIncluded] = useState("");
  const [existing, setExisting] = useState("");
  const [reason, setReason] = useState("");
  const minor = toMinor(amount, currency);
  const body: Schemas["CreatePrice"] = {
    item,
    item_key: itemKey,
    currency,
    minor: minor ?? 0,
    reason,
    tenant_id: tenant || undefined,
    per: item === "unit" ? (asCount(per) ?? 1) : undefined,
    minimum_seconds: asCount(minimum) ?? 0,
    included: asCount(included) ?? 0,
    existing_from: existing ? `${existing}T00:00:00Z` : undefined,
  };
  const words = [
    `mooring prices create --item ${item} --item-key ${itemKey || "KEY"} --currency ${currency} --minor ${body.minor}`,
    body.per !== undefined && `--per ${body.per}`,
    tenant && `--tenant ${tenant}`,
    body.minimum_seconds ? `--minimum-seconds ${body.minimum_seconds}` : "",
    body.included ? `--included ${body.included}` : "",
    body.existing_from && `--existing-from ${body.existing_from}`,
    `--reason "${reason}"`,
  ].filter(Boolean);
  return (
    <ActionDialog
      title="Add a price"
      confirm="Add"
      command={words.join(" ")}
      close={close}
      act={async (key) => {
        await answer(api.POST("/api/v1/platform/prices", { params: { header: { "Idempotency-Key": key } }, body }));
        await queries.invalidateQueries({ queryKey: ["prices"] });
      }}
    >
      <div className="grid grid-cols-2 gap-3">
        <label className="block font-medium">
          Item
          <select
            className="field mt-1"
            value={item}
            onChange={(event) => {
              setItem(event.target.value === "sku" ? "sku" : "unit");
              setItemKey("");
            }}
          >
            <option value="unit">a unit of an app</option>
            <option value="sku">a SKU, per GPU-hour</option>
          </select>
        </label>
        {item === "sku" ? (
          <label className="block font-medium">
            SKU
            <select
              className="field mt-1"
              required
              value={itemKey}
              onChange={(event) => setItemKey(event.target.value)}
            >
              <option value="">Choose…</option>
              {known.data?.items.map((each) => (
                <option key={each.id} value={each.id}>
                  {each.slug}
                </option>
              ))}
            </select>
          </label>
        ) : (
          <Field label="App and unit" required value={itemKey} onChange={setItemKey} placeholder="my-app/token_out" />
        )}
        <Field label="Amount" inputMode="decimal" required value={amount} onChange={setAmount} placeholder="2.50" />
        <Field
          label="Currency"
          required
          maxLength={3}
          value={currency}
          onChange={(text) => setCurrency(text.toUpperCase())}
        />
        {item === "unit" && <Field label="For how many units" type="number" min={1} value={per} onChange={setPer} />}
        {item === "unit" && (
          <Field label="Included units a month" type="number" min={0} value={included} onChange={setIncluded} />
        )}
        {item === "sku" && (
          <Field label="Minimum, seconds" type="number" min={0} value={minimum} onChange={setMinimum} />
        )}
        <Field
          label="Tenant, for a contract"
          value={tenant}
          onChange={setTenant}
          placeholder="ten_…"
          help="Empty: the list."
        />
        {item === "sku" && (
          <Field
            label="For what runs, from"
            type="date"
            value={existing}
            onChange={setExisting}
            help="Seven days ahead at least; empty: for new allocations only."
          />
        )}
      </div>
      <Field
        label="Reason"
        required
        minLength={10}
        maxLength={1000}
        value={reason}
        onChange={setReason}
        help="It is shown with the price; at least 10 characters."
      />
    </ActionDialog>
  );
}
