/** The rules of one layer as a form; what the server refuses stands beside its field. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, Problem, type Schemas } from "../api/client";
import { apiAt, flagOf, HERE, type Place } from "../api/place";
import type { Rules } from "../api/queries/policy";
import { ActionDialog } from "./Dialog";
import { CheckField, ReasonField, SelectField, TextField } from "./Fields";

type NamesKey = "sources" | "regions" | "skus" | "apps";

const NAMES: [NamesKey, string][] = [
  ["sources", "Sources"],
  ["regions", "Regions"],
  ["skus", "SKUs"],
  ["apps", "Apps"],
];

interface Draft {
  allow: Record<NamesKey, string>;
  deny: Record<NamesKey, string>;
  signatures: string;
  gpusMax: string;
  recordExec: boolean;
  untrusted: string;
}

const lines = (names: string[] | null | undefined) => (names ?? []).join("\n");

function draftOf(rules: Rules): Draft {
  const each = (pick: (rule: Schemas["NamesRule"]) => string[] | null | undefined) =>
    Object.fromEntries(NAMES.map(([key]) => [key, lines(rules[key] ? pick(rules[key]) : [])])) as Draft["allow"];
  return {
    allow: each((rule) => rule.allow),
    deny: each((rule) => rule.deny),
    signatures: rules.signatures ?? "",
    gpusMax: rules.gpus_max == null ? "" : String(rules.gpus_max),
    recordExec: rules.record_exec ?? false,
    untrusted: rules.untrusted_instances ?? "",
  };
}

function rulesOf(draft: Draft): Rules {
  const split = (text: string) =>
    text
      .split("\n")
      .map((each) => each.trim())
      .filter(Boolean);
  const rules: Rules = { record_exec: draft.recordExec };
  for (const [key] of NAMES) {
    const allow = split(draft.allow[key]);
    const deny = split(draft.deny[key]);
    if (allow.length > 0 || deny.length > 0) rules[key] = { allow: allow.length > 0 ? allow : null, deny };
  }
  if (draft.signatures) rules.signatures = draft.signatures;
  if (draft.gpusMax) rules.gpus_max = Number(draft.gpusMax);
  if (draft.untrusted) rules.untrusted_instances = draft.untrusted;
  return rules;
}

/** What the server refuses, by field: each rule that widens a layer above, or the field that is not valid. */
function errorsOf(error: unknown): Record<string, string> {
  if (!(error instanceof Problem)) return {};
  const widenings = (error.details.widenings ?? []) as {
    field: string;
    value: unknown;
    reason: string;
    layer: string;
  }[];
  const found: Record<string, string> = {};
  for (const { field, value, reason, layer } of widenings)
    found[nameOf(field)] ??= `${value}: ${reason} (layer of the ${layer})`;
  if (typeof error.details.path === "string") found[nameOf(error.details.path)] = error.detail;
  return found;
}

/** `rules.sources.allow[0]` is about `sources`. */
function nameOf(path: string): string {
  return path.replace(/^(\$\.|\$)?(rules\.)?/, "").split(/[.[]/)[0] ?? path;
}

interface PolicyEditorProps {
  place: Place;
  policy: Schemas["PolicyView"];
  close: () => void;
}

export function PolicyEditor({ place, policy, close }: PolicyEditorProps) {
  const queries = useQueryClient();
  const [draft, setDraft] = useState(() => draftOf(policy.rules as Rules));
  const [reason, setReason] = useState("");
  const [errors, setErrors] = useState<Record<string, string>>({});
  const set = (change: Partial<Draft>) => setDraft((before) => ({ ...before, ...change }));
  const act = async (key: string) => {
    setErrors({});
    try {
      await answer(
        apiAt(place).PUT("/api/v1/tenants/{tenant_id}/policy", {
          params: { path: HERE, header: { "Idempotency-Key": key } },
          body: { rules: rulesOf(draft), reason, revision: policy.revision },
        }),
      );
    } catch (error) {
      setErrors(errorsOf(error));
      throw error;
    }
    await queries.invalidateQueries({ queryKey: ["policy"] });
    await queries.invalidateQueries({ queryKey: ["policy-explained"] });
  };
  return (
    <ActionDialog
      title="Change the rules of this layer"
      confirm="Save the rules"
      command={`mooring policy update ${flagOf(place)} --from-file policy.yaml`}
      close={close}
      act={act}
    >
      <p className="text-muted">
        All rules of the layer are replaced, and take effect with the next decision. One name per line; a name may end
        with an asterisk.
      </p>
      <div className="max-h-[45vh] space-y-4 overflow-y-auto pr-2">
        {NAMES.map(([key, label]) => (
          <div key={key} className="grid gap-3 sm:grid-cols-2">
            <TextField
              label={`${label}: only these`}
              rows={2}
              placeholder="all"
              value={draft.allow[key]}
              onChange={(text) => set({ allow: { ...draft.allow, [key]: text } })}
              error={errors[key]}
            />
            <TextField
              label={`${label}: never these`}
              rows={2}
              placeholder="none"
              value={draft.deny[key]}
              onChange={(text) => set({ deny: { ...draft.deny, [key]: text } })}
            />
          </div>
        ))}
        <SelectField
          label="What must be signed"
          value={draft.signatures}
          onChange={(signatures) => set({ signatures })}
          empty="Not restricted"
          words={["none", "images", "everything"].map((each) => ({ value: each, label: each }))}
        />
        <TextField
          label="GPUs that a project may have"
          type="number"
          min={0}
          value={draft.gpusMax}
          onChange={(gpusMax) => set({ gpusMax })}
          error={errors.gpus_max}
        />
        <SelectField
          label="Instances whose artifacts lose their trust"
          value={draft.untrusted}
          onChange={(untrusted) => set({ untrusted })}
          empty="Not stated"
          words={[
            { value: "notify", label: "notify their project" },
            { value: "refuse", label: "also refuse actions and attachments" },
            { value: "drain", label: "also drain their members" },
            { value: "stop", label: "stop them" },
          ]}
        />
        <CheckField
          label="Record what exec sessions show"
          checked={draft.recordExec}
          onChange={(recordExec) => set({ recordExec })}
        />
      </div>
      <ReasonField value={reason} onChange={setReason} />
    </ActionDialog>
  );
}
