/** A request for capacity: which SKU, how many, and what the placement says about it before one asks. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../api/client";
import { placement } from "../api/queries/allocations";
import { skus } from "../api/queries/catalog";
import { ActionDialog } from "./Dialog";
import { CheckField, SelectField, TextField } from "./Fields";
import { PlacementVerdict } from "./PlacementVerdict";
import { money } from "./time";

interface RequestAllocationProps {
  project: Schemas["ProjectView"];
  close: () => void;
  done: () => void;
}

export function RequestAllocation({ project, close, done }: RequestAllocationProps) {
  const offered = (useQuery(skus).data?.items ?? []).filter((each) => each.status === "offered");
  const [slug, setSlug] = useState("");
  const [gpus, setGpus] = useState("");
  const [count, setCount] = useState("1");
  const [together, setTogether] = useState(false);
  const [name, setName] = useState("");
  const sku = offered.find((each) => each.slug === slug) ?? offered[0];
  const gpuCount = Number(gpus) || sku?.allowed_gpu_counts[0] || 1;
  const many = Math.max(1, Number(count) || 1);
  const request = sku && { shape: sku.shape, sku: sku.slug, gpu_count: gpuCount };
  const fit = useQuery(placement(project.id, request && { ...request, count: many, same_node: together }));
  const act = async (key: string) => {
    if (!request) return;
    const params = { path: { project_id: project.id }, header: { "Idempotency-Key": key } };
    if (many === 1)
      await answer(
        api.POST("/api/v1/projects/{project_id}/allocations", { params, body: { ...request, name: name || null } }),
      );
    else
      await answer(
        api.POST("/api/v1/projects/{project_id}/allocation-groups", {
          params,
          body: { ...request, name, count: many, same_node: together },
        }),
      );
    done();
  };
  const noun = many === 1 ? "allocations" : "allocation-groups";
  const words = [`mooring ${noun} create --project ${project.slug}`];
  if (request) words.push(`--shape ${request.shape} --sku ${request.sku} --gpu-count ${gpuCount}`);
  if (many > 1) words.push(`--count ${many}${together ? " --same-node" : ""}`);
  if (name) words.push(`--name ${name}`);
  return (
    <ActionDialog
      title={`Request capacity for ${project.slug}`}
      confirm="Request it"
      command={words.join(" ")}
      close={close}
      act={act}
    >
      {offered.length === 0 ? (
        <p className="text-muted">No SKU is offered; staff of the platform offers one.</p>
      ) : (
        <>
          <SelectField
            label="SKU"
            value={sku?.slug ?? ""}
            onChange={setSlug}
            words={offered.map((each) => ({ value: each.slug, label: `${each.display_name} (${each.gpu_model})` }))}
          />
          <div className="grid grid-cols-2 gap-3">
            <SelectField
              label="GPUs each"
              value={String(gpuCount)}
              onChange={setGpus}
              words={(sku?.allowed_gpu_counts ?? []).map((each) => ({ value: String(each), label: String(each) }))}
            />
            <TextField label="How many" type="number" min={1} value={count} onChange={setCount} />
          </div>
          {many > 1 && <CheckField label="All on one machine" checked={together} onChange={setTogether} />}
          <TextField
            label={many > 1 ? "Name of the group" : "Name"}
            value={name}
            onChange={setName}
            required={many > 1}
            maxLength={40}
            pattern="[a-z][a-z0-9\-]{1,38}[a-z0-9]"
            help="Small letters, digits and hyphens."
          />
          <PlacementVerdict query={fit} />
          {sku && (
            <p className="text-muted">
              {money(sku.price_minor_per_gpu_hour * gpuCount * many, sku.currency)} per hour by the list, charged from
              the moment it is active until its release is requested.
            </p>
          )}
        </>
      )}
    </ActionDialog>
  );
}
