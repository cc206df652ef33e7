/** Where a request would be placed, or why nowhere; change the form to see what would help. Nothing is requested. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { placement } from "../api/queries/allocations";
import { skus } from "../api/queries/catalog";
import { DataTable } from "../parts/DataTable";
import { CheckField, SelectField, TextField } from "../parts/Fields";
import { PlacementVerdict } from "../parts/PlacementVerdict";
import { ProjectPicker } from "../parts/ProjectPicker";
import { useProject } from "../parts/session";
import { useTitle } from "../parts/title";
import { CommandLine, Empty, PageHead, Panel } from "../parts/ui";
import type { ExplainSearch } from "../routes/fleet";

export function Placement() {
  useTitle("Placement");
  const search = useSearch({ from: "/shell/allocations/explain" });
  const navigate = useNavigate({ from: "/allocations/explain" });
  const { project, projects } = useProject(search.project);
  const offered = useQuery(skus).data?.items ?? [];
  const sku = offered.find((each) => each.slug === search.sku) ?? offered[0];
  const count = search.count ?? 1;
  const gpus = search.gpus ?? sku?.allowed_gpu_counts[0];
  const body = sku && {
    shape: sku.shape,
    sku: sku.slug,
    gpu_count: gpus,
    region: search.region ?? null,
    count,
    same_node: search.together ?? false,
  };
  const fit = useQuery(placement(project?.id, body));
  const set = (change: ExplainSearch) =>
    void navigate({ replace: true, search: (before) => ({ ...before, ...change }) });
  const command = `mooring allocations explain --project ${project?.slug ?? "PROJECT"} --shape ${sku?.shape ?? "SHAPE"} --sku ${sku?.slug ?? "SKU"}${gpus ? ` --gpu-count ${gpus}` : ""}${search.region ? ` --region ${search.region}` : ""}${count > 1 ? ` --count ${count}` : ""}${search.together ? " --same-node" : ""}`;
  return (
    <>
      <PageHead title="What would fit?" sub="Asks the placement, and requests nothing.">
        <ProjectPicker projects={projects} value={project?.id} onChange={(next) => set({ project: next })} />
      </PageHead>
      <div className="grid gap-5 lg:grid-cols-[20rem_minmax(0,1fr)]">
        <Panel title="Request">
          <div className="space-y-4 p-4">
            <SelectField
              label="SKU"
              value={sku?.slug ?? ""}
              onChange={(slug) => set({ sku: slug, gpus: undefined, region: undefined })}
              words={offered.map((each) => ({ value: each.slug, label: `${each.slug} (${each.gpu_model})` }))}
            />
            <SelectField
              label="GPUs each"
              value={String(gpus ?? "")}
              onChange={(value) => set({ gpus: Number(value) })}
              words={(sku?.allowed_gpu_counts ?? []).map((each) => ({ value: String(each), label: String(each) }))}
            />
            <TextField
              label="How many"
              type="number"
              min={1}
              value={String(count)}
              onChange={(value) => set({ count: Number(value) || undefined })}
            />
            <SelectField
              label="Region"
              value={search.region ?? ""}
              onChange={(region) => set({ region: region || undefined })}
              empty="Where there is room"
              words={(sku?.regions ?? []).map((each) => ({ value: each, label: each }))}
            />
            <CheckField
              label="All on one machine"
              checked={search.together ?? false}
              onChange={(together) => set({ together: together || undefined })}
            />
          </div>
        </Panel>
        <div className="space-y-5">
          <PlacementVerdict query={fit} />
          {!fit.error && (
            <DataTable
              label="Machines by region"
              title="Machines by region"
              columns={[
                { head: "Region", narrow: "line", cell: (each) => <span className="font-medium">{each.region}</span> },
                { head: "Machines", isNumber: true, cell: (each) => `${each.machines}` },
                { head: "Why none fits", narrow: "line", cell: (each) => each.because },
                { head: "What would help", narrow: "line", cell: (each) => each.change },
              ]}
              query={{ data: fit.data && { items: fit.data.candidates }, error: null }}
              rowKey={(each) => `${each.region} ${each.because}`}
              empty={
                fit.data?.fits ? (
                  <Empty title="Nothing stands in the way">A machine has the room now.</Empty>
                ) : (
                  <Empty title="No machine offers this SKU">Staff of the platform adds machines to a region.</Empty>
                )
              }
            />
          )}
          <CommandLine command={command} />
        </div>
      </div>
    </>
  );
}
