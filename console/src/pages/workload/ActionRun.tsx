/** One action as a dialog: its form, what it says of itself, and its result. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Instance } from "../../api/client";
import { members as membersQuery, runAction } from "../../api/queries/runtime";
import { ActionDialog } from "../../parts/Dialog";
import { type Config, Labelled, SchemaForm } from "../../parts/SchemaForm";
import { Panel } from "../../parts/ui";
import { type AppAction, type Row, titleOf } from "./actions";

interface ActionRunProps {
  instance: Instance;
  action: AppAction;
  /** What the row of a table has filled in. */
  given: Row;
  close: () => void;
  done: () => void;
}

export function ActionRun({ instance, action, given, close, done }: ActionRunProps) {
  const [input, setInput] = useState<Config>({});
  const [memberId, setMemberId] = useState("");
  const [result, setResult] = useState<Row | null>(null);
  const listed = useQuery({ ...membersQuery(instance), enabled: action.target === "member" }).data?.items ?? [];
  const fields = Object.entries(action.input_schema.properties ?? {}).filter(([name]) => !(name in given));
  const schema = { ...action.input_schema, properties: Object.fromEntries(fields) };
  const whole = { ...given, ...input };
  const title = titleOf(action);
  const subject = Object.values(given).map(String).join(", ");
  if (result)
    return (
      <ActionDialog
        title={`${title}: done`}
        confirm="Close"
        isResult
        command={commandOf(instance, action, whole, schema)}
        close={close}
        act={async () => undefined}
      >
        <Result output={result} action={action} />
      </ActionDialog>
    );
  return (
    <ActionDialog
      key="form"
      title={`${title}${subject && `: ${subject}`}`}
      confirm={title}
      danger={action.destructive}
      command={commandOf(instance, action, whole, schema)}
      close={close}
      stays
      act={async (key) => {
        const operation = await runAction(
          instance,
          action.name,
          { input: whole as Record<string, never>, member_id: memberId || null },
          key,
        );
        done();
        if (Object.keys(operation.output ?? {}).length === 0) close();
        else setResult(operation.output ?? {});
      }}
    >
      {action.description && <p className="text-muted">{action.description}</p>}
      {action.destructive && <p className="font-medium text-bad">What it ends or deletes does not come back.</p>}
      {action.target === "member" && (
        <Labelled id="action-member" label="Member" required>
          <select
            id="action-member"
            className="field"
            value={memberId}
            onChange={(event) => setMemberId(event.target.value)}
          >
            <option value="">Choose…</option>
            {listed.map((each) => (
              <option key={each.id} value={each.id}>
                {each.name}
              </option>
            ))}
          </select>
        </Labelled>
      )}
      {fields.length > 0 && <SchemaForm schema={schema} value={input} onChange={setInput} />}
    </ActionDialog>
  );
}

/** The command without the values of secrets: what is on the screen is not in it. */
function commandOf(instance: Instance, action: AppAction, input: Row, schema: AppAction["input_schema"]): string {
  const shown = Object.fromEntries(
    Object.entries(input).map(([name, value]) => [name, schema.properties?.[name]?.writeOnly ? "…" : value]),
  );
  const text = JSON.stringify(shown).replaceAll("'", `'\\''`);
  return `mooring instances actions act ${instance.name} ${action.name} --input '${text}' --wait 60`;
}

function Result({ output, action }: { output: Row; action: AppAction }) {
  const fields = action.output_schema?.properties ?? {};
  return (
    <Panel className="max-h-96 overflow-auto">
      <dl className="space-y-3 p-3">
        {Object.entries(output).map(([name, value]) => (
          <div key={name}>
            <dt className="text-xs text-muted">{fields[name]?.title ?? name}</dt>
            <dd className="mt-0.5 break-words">
              {typeof value === "object" || String(value).includes("\n") ? (
                <pre className="overflow-x-auto rounded-md bg-sunken p-2 font-mono text-xs">
                  {typeof value === "object" ? JSON.stringify(value, null, 2) : String(value)}
                </pre>
              ) : (
                String(value)
              )}
            </dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}
