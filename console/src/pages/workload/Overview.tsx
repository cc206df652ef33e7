/** Is it well, if not why, how do I use it, and what is it made of. */
import type { Instance, Schemas } from "../../api/client";
import { Ago } from "../../parts/time";
import { CopyButton, Definition, Panel } from "../../parts/ui";
import { Endpoints } from "./Endpoints";
import type { InstanceVerb } from "./InstanceDialog";
import { Phase } from "./Phase";
import { Secrets } from "./Secrets";
import { StateStrip } from "./StateStrip";
import { WhyPanel } from "./WhyPanel";

export function Overview({ instance, act }: { instance: Instance; act: (verb: InstanceVerb) => void }) {
  return (
    <div className="grid items-start gap-5 lg:grid-cols-2">
      <StateStrip instance={instance} act={act} />
      <Phase instance={instance} />
      <WhyPanel instance={instance} act={act} />
      <div className="space-y-5">
        <Endpoints instance={instance} />
        <Secrets instance={instance} />
      </div>
      <Panel title="Members">
        <ul className="divide-y divide-line">
          {instance.members_summary.map((each) => (
            <li key={each.component_key} className="flex items-center gap-3 px-4 py-2.5">
              <span className="flex-1 font-medium">{each.component_key}</span>
              <Blocks summary={each} />
              <span className="text-xs text-muted tabular-nums">
                {each.desired === 0 ? "none" : `${each.healthy} healthy of ${each.desired}`}
              </span>
            </li>
          ))}
        </ul>
      </Panel>
      <Panel title="Details">
        <dl className="grid grid-cols-2 gap-4 p-4">
          <Definition label="Version">
            {instance.version} {instance.channel && <span className="text-muted">({instance.channel})</span>}
          </Definition>
          <Definition label="Capacity">
            {String(instance.placement.sku ?? "existing allocations")}
            {instance.placement.gpu_count !== undefined && `, ${instance.placement.gpu_count} GPU each`}
          </Definition>
          <Definition label="Launched">
            <Ago at={instance.created_at} />
          </Definition>
          <Definition label="Adapter">{instance.claim.held ? (instance.claim.holder ?? "held") : "none"}</Definition>
          <Definition label="Correlation id">
            <span className="flex items-center font-mono text-xs">
              <span className="truncate">{instance.correlation_id}</span>
              <CopyButton text={instance.correlation_id} label="Copy the correlation id" />
            </span>
          </Definition>
          {instance.teardown_proof && <Definition label="Teardown">{instance.teardown_proof}</Definition>}
        </dl>
        {Object.keys(instance.config).length > 0 && (
          <details className="border-t border-line px-4 py-3">
            <summary className="text-xs text-muted">Configuration</summary>
            <pre className="mt-2 overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
              {JSON.stringify(instance.config, null, 2)}
            </pre>
          </details>
        )}
      </Panel>
    </div>
  );
}

function Blocks({ summary }: { summary: Schemas["RoleSummaryView"] }) {
  const count = Math.min(summary.desired, 24);
  return (
    <span aria-hidden className="flex flex-wrap gap-0.5">
      {Array.from({ length: count }, (_, index) => (
        <span
          key={index}
          className={`size-2.5 rounded-[3px] ${
            index < summary.healthy ? "bg-good" : index < summary.current ? "bg-warn" : "bg-line"
          }`}
        />
      ))}
    </span>
  );
}
