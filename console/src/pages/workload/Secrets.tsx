/** The secrets that open the app. A value is shown on request only, and the audit trail says to whom. */
import { useQuery } from "@tanstack/react-query";
import EyeOff from "lucide-react/icons/eye-off";
import { useState } from "react";
import { answer, api, type Instance, type Schemas } from "../../api/client";
import { instanceSecrets } from "../../api/queries/runtime";
import { ActionDialog } from "../../parts/Dialog";
import { Button, CopyButton, Panel, ProblemBox } from "../../parts/ui";

export function Secrets({ instance }: { instance: Instance }) {
  const mayConnect = instance.allowed_actions.includes("instance.connect");
  const listed = useQuery({ ...instanceSecrets(instance), enabled: mayConnect });
  const shown = listed.data?.items.filter((each) => each.shown) ?? [];
  if (!listed.error && shown.length === 0) return null;
  return (
    <Panel title="Secrets">
      {listed.error ? (
        <ProblemBox error={listed.error} retry={() => listed.refetch()} />
      ) : (
        <ul className="divide-y divide-line">
          {shown.map((each) => (
            <SecretRow key={each.id} secret={each} instance={instance} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function SecretRow({ secret, instance }: { secret: Schemas["InstanceSecretView"]; instance: Instance }) {
  const [value, setValue] = useState<string>();
  const [asked, setAsked] = useState(false);
  return (
    <li className="space-y-2 px-4 py-2.5">
      <div className="flex items-center gap-3">
        <span className="min-w-0 flex-1">
          <span className="block truncate font-medium">{secret.name}</span>
          <span className="text-xs text-muted">{secret.meaning}</span>
        </span>
        {value === undefined ? (
          <Button onClick={() => setAsked(true)}>Reveal</Button>
        ) : (
          <Button onClick={() => setValue(undefined)}>
            <EyeOff size={14} aria-hidden /> Hide
          </Button>
        )}
      </div>
      {value !== undefined && (
        <div className="flex items-center gap-1 rounded-md bg-sunken pl-3">
          <code className="min-w-0 flex-1 py-1.5 font-mono text-xs break-all">{value}</code>
          <CopyButton text={value} label={`Copy ${secret.name}`} />
        </div>
      )}
      {asked && (
        <ActionDialog
          title={`Reveal ${secret.name}?`}
          confirm="Reveal it"
          command={`mooring instances secrets reveal ${instance.name} ${secret.name}`}
          close={() => setAsked(false)}
          act={async (key) => {
            const found = await answer(
              api.POST("/api/v1/projects/{project_id}/app-instances/{instance_id}/secrets/{secret_name}/reveal", {
                params: {
                  path: { project_id: instance.project_id, instance_id: instance.id, secret_name: secret.name },
                  header: { "Idempotency-Key": key },
                },
              }),
            );
            setValue(found.value);
          }}
        >
          <p>It opens the app. The audit trail records that you looked at it, and when.</p>
        </ActionDialog>
      )}
    </li>
  );
}
