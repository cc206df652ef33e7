/** How the app is used: open its page, or copy what reaches it. */
import { useQuery } from "@tanstack/react-query";
import ExternalLink from "lucide-react/icons/external-link";
import { useState } from "react";
import { answer, api, type Instance, type Schemas } from "../../api/client";
import { endpoints } from "../../api/queries/fleet";
import { Button, CopyButton, Panel, ProblemBox } from "../../parts/ui";

export function Endpoints({ instance }: { instance: Instance }) {
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
        ) : null}
        <CopyButton
          text={`mooring connect ${instance.name}/${endpoint.name}`}
          label="Copy the command that reaches it"
        />
      </div>
      {error !== null && <ProblemBox error={error} />}
    </li>
  );
}
