/** The limits of a project: how much it may hold and spend at once. */
import { useState } from "react";
import type { Schemas } from "../../api/client";
import { minorToText, toMinor } from "../../parts/amount";
import { ActionDialog } from "../../parts/Dialog";
import { Field } from "../../parts/Field";

interface QuotaDialogProps {
  before: Schemas["QuotaView"];
  save: (body: Schemas["PutQuota"], key: string) => Promise<void>;
  close: () => void;
}

const asCount = (text: string): number | undefined => (text.trim() === "" ? undefined : Number(text));

export function QuotaDialog({ before, save, close }: QuotaDialogProps) {
  const [gpus, setGpus] = useState(String(before.gpus_max ?? ""));
  const [instances, setInstances] = useState(String(before.instances_max ?? ""));
  const [currency, setCurrency] = useState(before.currency ?? "EUR");
  const [perHour, setPerHour] = useState(
    before.minor_per_hour_max === null ? "" : minorToText(before.minor_per_hour_max, currency),
  );
  const [reason, setReason] = useState("");
  const minor = perHour.trim() === "" ? null : toMinor(perHour, currency);
  const body: Schemas["PutQuota"] = {
    reason,
    gpus_max: asCount(gpus),
    instances_max: asCount(instances),
    minor_per_hour_max: minor ?? undefined,
    currency: minor === null ? undefined : currency,
    revision: before.id === null ? undefined : before.revision,
  };
  const words = [
    body.gpus_max !== undefined && `--gpus-max ${body.gpus_max}`,
    body.instances_max !== undefined && `--instances-max ${body.instances_max}`,
    minor !== null && `--minor-per-hour-max ${minor} --currency ${currency}`,
  ].filter(Boolean);
  return (
    <ActionDialog
      title="Change the quota"
      confirm="Save"
      command={`mooring quotas update --project ${before.project_id} ${words.join(" ")} --reason "${reason}"`}
      close={close}
      act={(key) => save(body, key)}
    >
      <p className="text-muted">An empty field does not limit. Nothing that runs is stopped.</p>
      <div className="grid grid-cols-2 gap-3">
        <Field label="GPUs at once" type="number" min={0} value={gpus} onChange={setGpus} />
        <Field label="Instances" type="number" min={0} value={instances} onChange={setInstances} />
        <Field
          label="Spending per hour"
          inputMode="decimal"
          value={perHour}
          onChange={setPerHour}
          placeholder="20.00"
        />
        <Field label="Currency" maxLength={3} value={currency} onChange={(text) => setCurrency(text.toUpperCase())} />
      </div>
      <Field
        label="Reason"
        required
        minLength={10}
        maxLength={1000}
        value={reason}
        onChange={setReason}
        help="It is stored in the audit trail; at least 10 characters."
      />
    </ActionDialog>
  );
}
