/** How a unit of an app is billed from now on. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { ActionDialog } from "../../parts/Dialog";
import { Field } from "../../parts/Field";

const BILLINGS: readonly Schemas["Billing"][] = ["charged", "covered", "informative"];
const STATES: readonly Schemas["MeterStatus"][] = ["enabled", "disabled"];

export function MeterDialog({ before, close }: { before?: Schemas["MeterView"]; close: () => void }) {
  const queries = useQueryClient();
  const [app, setApp] = useState(before?.app ?? "");
  const [unit, setUnit] = useState(before?.unit ?? "");
  const [billing, setBilling] = useState<Schemas["Billing"]>(before?.billing ?? "charged");
  const [status, setStatus] = useState<Schemas["MeterStatus"]>(before?.status ?? "enabled");
  return (
    <ActionDialog
      title={before ? `Change the meter ${before.app}/${before.unit}` : "Set a meter"}
      confirm="Save"
      command={`mooring meters set ${app || "APP"} ${unit || "UNIT"} --billing ${billing} --status ${status}`}
      close={close}
      act={async (key) => {
        await answer(
          api.PUT("/api/v1/platform/meters/{app_slug}/{unit}", {
            params: { path: { app_slug: app, unit }, header: { "Idempotency-Key": key } },
            body: { billing, status },
          }),
        );
        await queries.invalidateQueries({ queryKey: ["meters"] });
      }}
    >
      {!before && (
        <div className="grid grid-cols-2 gap-3">
          <Field label="App" required value={app} onChange={setApp} placeholder="my-app" />
          <Field label="Unit" required value={unit} onChange={setUnit} placeholder="token_out" />
        </div>
      )}
      <label className="block font-medium">
        Billing
        <select
          className="field mt-1"
          value={billing}
          onChange={(event) => setBilling(BILLINGS.find((each) => each === event.target.value) ?? "charged")}
        >
          <option value="charged">charged: needs a list price that holds now</option>
          <option value="covered">covered: the allocation pays for it</option>
          <option value="informative">informative: costs nothing</option>
        </select>
      </label>
      <label className="block font-medium">
        State
        <select
          className="field mt-1"
          value={status}
          onChange={(event) => setStatus(STATES.find((each) => each === event.target.value) ?? "enabled")}
        >
          <option value="enabled">enabled</option>
          <option value="disabled">disabled: usage in this unit is refused</option>
        </select>
      </label>
      <p className="text-xs text-muted">Usage that is stored already keeps how it was billed.</p>
    </ActionDialog>
  );
}
