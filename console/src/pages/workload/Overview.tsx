/** Is it well, if not why, how do I use it, and what is it made of. */
import { useQuery } from "@tanstack/react-query";
import ArrowRight from "lucide-react/icons/arrow-right";
import ExternalLink from "lucide-react/icons/external-link";
import { useState } from "react";
import { answer, api, type Instance, type Schemas } from "../../api/client";
import { endpoints } from "../../api/queries/fleet";
import { why } from "../../api/queries/runtime";
import { Status } from "../../parts/Status";
import { Ago } from "../../parts/time";
import { Button, CommandLine, CopyButton, Definition, Panel, ProblemBox, Skeleton } from "../../parts/ui";

export function Overview({ instance }: { instance: Instance }) {
  return (
    <div className="grid items-start gap-5 lg:grid-cols-2">
      <Why instance={instance} />
      <Endpoints instance={instance} />
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

function Why({ instance }: { instance: Instance }) {
  const explained = useQuery(why(instance));
  return (
    <Panel title="Why">
      {explained.error ? (
        <ProblemBox error={explained.error} />
      ) : !explained.data ? (
        <Skeleton rows={3} />
      ) : (
        <div className="space-y-4 p-4">
          <ol className="space-y-3">
            {explained.data.chain.map((each, depth) => (
              <li key={each.id} className={depth > 0 ? "border-l-2 border-line pl-3" : ""}>
                <p className="flex flex-wrap items-center gap-2">
                  <span className="text-muted">{each.noun}</span>
                  <span className="font-medium">{each.name}</span>
                  <Status kind={each.noun} value={each.status} />
                  {each.since && (
                    <span className="text-xs text-muted">
                      <Ago at={each.since} />
                    </span>
                  )}
                </p>
                <p className="mt-1 break-words">{each.text}</p>
                {each.last_lines.length > 0 && (
                  <pre className="mt-2 overflow-x-auto rounded-md bg-sunken p-3 font-mono text-xs">
                    {each.last_lines.join("\n")}
                  </pre>
                )}
              </li>
            ))}
          </ol>
          <div className="rounded-md bg-accent-soft p-3">
            <p className="flex gap-2">
              <ArrowRight size={16} className="mt-0.5 shrink-0 text-accent" aria-hidden />
              <span>
                <span className="font-semibold">
                  {explained.data.next.who === "nobody" ? "Next" : `Next, ${who(explained.data.next.who)}`}:
                </span>{" "}
                {explained.data.next.what}
              </span>
            </p>
            {explained.data.next.command && (
              <div className="mt-2">
                <CommandLine command={explained.data.next.command} />
              </div>
            )}
          </div>
        </div>
      )}
    </Panel>
  );
}

function who(word: string): string {
  return word === "you" ? "you" : `the ${word.replaceAll("_", " ")}`;
}

function Endpoints({ instance }: { instance: Instance }) {
  const listed = useQuery(endpoints(instance.project_id));
  const own = listed.data?.items.filter((each) => each.instance_id === instance.id) ?? [];
  const titles = new Map(instance.endpoints.map((each) => [each.task_id, each.title]));
  return (
    <Panel title="Endpoints">
      {listed.error ? (
        <ProblemBox error={listed.error} />
      ) : own.length === 0 ? (
        <p className="px-4 py-6 text-muted">
          {instance.status === "stopped" ? "It is stopped." : "Nothing listens yet."}
        </p>
      ) : (
        <ul className="divide-y divide-line">
          {own.map((each) => (
            <EndpointRow key={each.id} endpoint={each} title={titles.get(each.id) ?? each.name} instance={instance} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

interface EndpointRowProps {
  endpoint: Schemas["EndpointView"];
  title: string;
  instance: Instance;
}

function EndpointRow({ endpoint, title, instance }: EndpointRowProps) {
  const [error, setError] = useState<unknown>(null);
  const mayConnect = instance.allowed_actions.includes("instance.connect");
  const open = async () => {
    setError(null);
    // The window opens with the click, before the answer: a browser blocks one that opens later.
    const page = window.open("about:blank", "_blank");
    try {
      const link = await answer(
        api.POST("/api/v1/projects/{project_id}/endpoints/{endpoint_id}/open", {
          params: { path: { project_id: endpoint.project_id, endpoint_id: endpoint.id } },
        }),
      );
      if (page) {
        page.opener = null;
        page.location.replace(link.url);
      }
    } catch (failure) {
      page?.close();
      setError(failure);
    }
  };
  return (
    <li className="space-y-2 px-4 py-2.5">
      <div className="flex items-center gap-3">
        <span className="min-w-0 flex-1">
          <span className="block truncate font-medium">{title}</span>
          <span className="text-xs text-muted">
            {endpoint.protocol}, port {endpoint.port}
          </span>
        </span>
        {endpoint.protocol === "http" ? (
          <Button
            onClick={() => void open()}
            disabledReason={mayConnect ? undefined : "you need instance.connect; an admin of the project can give it"}
          >
            Open <ExternalLink size={14} aria-hidden />
          </Button>
        ) : (
          <CopyButton text={`mooring connect ${instance.name}/${endpoint.name}`} label="Copy the command" />
        )}
      </div>
      {error !== null && <ProblemBox error={error} />}
    </li>
  );
}
