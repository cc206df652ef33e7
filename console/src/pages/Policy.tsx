/** What is allowed here: the layers side by side, each with what it narrows, and a box that answers a question. */
import { useQueries, useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import CircleCheck from "lucide-react/icons/circle-check";
import CircleX from "lucide-react/icons/circle-x";
import { type ReactNode, useState } from "react";
import type { Schemas } from "../api/client";
import { flagOf, type Place } from "../api/place";
import { whoAmI } from "../api/queries/identity";
import { explained, policy, type Rules } from "../api/queries/policy";
import { TextField } from "../parts/Fields";
import { PolicyEditor } from "../parts/PolicyEditor";
import { PlacePicker, useLack, usePlace } from "../parts/place";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, CommandLine, Empty, PageHead, Panel, ProblemBox, Skeleton } from "../parts/ui";
import type { PolicySearch } from "../routes/catalog";

export function Policy() {
  useTitle("Policy");
  const search = useSearch({ from: "/shell/policy" });
  const navigate = useNavigate({ from: "/policy" });
  const { place, word, options } = usePlace(search.at);
  const set = (change: PolicySearch) =>
    void navigate({ replace: true, search: (before) => ({ ...before, ...change }) });
  return (
    <>
      <PageHead title="Policy" sub="Each layer can only narrow what the layers above it allow.">
        <PlacePicker options={options} value={word} onChange={(at) => set({ at })} />
      </PageHead>
      {!place ? (
        <Skeleton />
      ) : (
        <div className="space-y-5">
          <Layers place={place} />
          <Explain place={place} search={search} set={set} />
        </div>
      )}
    </>
  );
}

const LAYERS: Record<Schemas["Layer"], string> = {
  global: "Platform",
  tenant: "Tenant",
  project: "Project",
  entitlement: "Entitlement",
};

/** The layers that can be read from a place: the platform's own rules are read by its staff only. */
function useLayers(place: Place): Place[] {
  const me = useQuery(whoAmI).data;
  if (place.scope !== "project" || !me?.tenant_id || !me.tenant_actions.includes("policy.read")) return [place];
  return [{ scope: "tenant", id: me.tenant_id }, place];
}

function Layers({ place }: { place: Place }) {
  const places = useLayers(place);
  const found = useQueries({ queries: places.map(policy) });
  const lack = useLack(place)("policy.update");
  const [isOpen, setOpen] = useState(false);
  const error = found.find((each) => each.error)?.error;
  if (error) return <ProblemBox error={error} />;
  const layers = found.flatMap((each) => (each.data ? [each.data] : []));
  const own = layers.at(-1);
  if (layers.length < places.length || !own) return <Skeleton rows={8} />;
  return (
    <Panel
      title="Rules"
      aside={
        <Button onClick={() => setOpen(true)} disabledReason={lack}>
          Change the {LAYERS[own.layer].toLowerCase()} layer
        </Button>
      }
    >
      {layers.every((each) => Object.keys(stated(each.rules)).length === 0) ? (
        <Empty title="No rule here restricts anything" command={`mooring policy get ${flagOf(place)}`}>
          {place.scope !== "platform" && "The layer of the platform applies all the same; ask below what it decides."}
        </Empty>
      ) : (
        <div className="overflow-x-auto">
          <table className="w-full text-left">
            <caption className="sr-only">Rules by layer</caption>
            <thead className="border-b border-line text-xs text-muted">
              <tr>
                <th scope="col" className="px-4 py-2 font-medium">
                  Subject
                </th>
                {layers.map((each) => (
                  <th key={each.layer} scope="col" className="px-4 py-2 font-medium">
                    {LAYERS[each.layer]}
                    {each.updated_at && (
                      <span className="font-normal">
                        , changed <Ago at={each.updated_at} />
                      </span>
                    )}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody className="divide-y divide-line">
              {SUBJECTS.map(([name, label]) => (
                <tr key={name}>
                  <th scope="row" className="px-4 py-2 align-top font-medium">
                    {label}
                  </th>
                  {layers.map((each) => (
                    <td key={each.layer} className="px-4 py-2 align-top">
                      <Rule value={stated(each.rules)[name]} />
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {place.scope !== "platform" && (
        <p className="border-t border-line px-4 py-3 text-xs text-muted">
          Above these stands the layer of the platform. Its rules are read by staff; what it decides is answered below.
        </p>
      )}
      {isOpen && <PolicyEditor place={place} policy={own} close={() => setOpen(false)} />}
    </Panel>
  );
}

const SUBJECTS: [keyof Rules, string][] = [
  ["sources", "Sources of artifacts"],
  ["regions", "Regions"],
  ["skus", "SKUs"],
  ["apps", "Apps"],
  ["signatures", "Signatures"],
  ["gpus_max", "GPUs of a project"],
  ["record_exec", "Recording of exec"],
  ["untrusted_instances", "Instances that lose their trust"],
];

function stated(rules: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(rules).filter(([, value]) => value !== null && value !== undefined && value !== false),
  );
}

function Rule({ value }: { value: unknown }): ReactNode {
  if (value === undefined) return <span className="text-muted">not restricted</span>;
  if (value === true) return "recorded";
  if (typeof value !== "object") return String(value);
  const { allow, deny } = value as Schemas["NamesRule"];
  return (
    <div className="space-y-1 text-xs">
      {allow && (
        <p>
          <span className="font-medium text-good">only</span> <Names names={allow} />
        </p>
      )}
      {deny && deny.length > 0 && (
        <p>
          <span className="font-medium text-bad">never</span> <Names names={deny} />
        </p>
      )}
    </div>
  );
}

function Names({ names }: { names: string[] }) {
  return <span className="font-mono break-all">{names.length === 0 ? "nothing" : names.join(", ")}</span>;
}

interface ExplainProps {
  place: Place;
  search: PolicySearch;
  set: (change: PolicySearch) => void;
}

const QUESTIONS: [Exclude<keyof PolicySearch, "at" | "gpus">, string, string][] = [
  ["app", "App", "hello"],
  ["source", "From the source", "oci://registry.example/team/app"],
  ["region", "In the region", "eu-west"],
  ["sku", "On the SKU", "h100"],
];

function Explain({ place, search, set }: ExplainProps) {
  const { at: _, ...question } = search;
  const isAsked = Object.values(question).some((each) => each !== undefined);
  const found = useQuery({ ...explained(place, question), enabled: isAsked });
  const flags = Object.entries(question)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => ` --${name} ${value}`);
  return (
    <Panel title="May this run here?">
      <div className="grid gap-5 p-4 lg:grid-cols-[20rem_minmax(0,1fr)]">
        <div className="space-y-3">
          {QUESTIONS.map(([name, label, example]) => (
            <TextField
              key={name}
              label={label}
              placeholder={example}
              maxLength={200}
              value={search[name] ?? ""}
              onChange={(value) => set({ [name]: value || undefined })}
            />
          ))}
          <TextField
            label="GPUs of the project then"
            type="number"
            min={0}
            value={search.gpus === undefined ? "" : String(search.gpus)}
            onChange={(value) => set({ gpus: value === "" ? undefined : Number(value) })}
          />
        </div>
        <div className="min-w-0 space-y-3" aria-live="polite">
          {!isAsked ? (
            <Empty title="Ask about an app, a source, a region or a SKU">
              The answer names the layer that decides, and what every layer says.
            </Empty>
          ) : found.error ? (
            <ProblemBox error={found.error} />
          ) : !found.data ? (
            <Skeleton />
          ) : (
            <Verdicts answer={found.data} />
          )}
          <CommandLine command={`mooring policy explain ${flagOf(place)}${flags.join("")}`} />
        </div>
      </div>
    </Panel>
  );
}

function Verdicts({ answer }: { answer: Schemas["ExplainedView"] }) {
  return (
    <>
      <p className={`flex items-center gap-2 font-semibold ${answer.allowed ? "text-good" : "text-bad"}`}>
        {answer.allowed ? <CircleCheck size={18} aria-hidden /> : <CircleX size={18} aria-hidden />}
        {answer.allowed ? "Allowed" : "Denied"}
        {answer.decided_by && ` by the layer of the ${LAYERS[answer.decided_by].toLowerCase()}`}
      </p>
      <p className="break-words">{answer.reason}</p>
      {answer.answers.length > 0 && (
        <ul className="divide-y divide-line rounded-md border border-line">
          {answer.answers.map((each) => (
            <li
              key={`${each.layer} ${each.subject} ${each.value} ${each.reason}`}
              className="flex flex-wrap gap-x-3 px-3 py-2 text-xs"
            >
              <span className={`w-14 font-medium ${each.allowed ? "text-good" : "text-bad"}`}>
                {each.allowed ? "allows" : "denies"}
              </span>
              <span className="w-20">{each.layer ? LAYERS[each.layer] : "no layer"}</span>
              <span className="min-w-0 flex-1 break-words text-muted">
                {each.subject} {each.value}: {each.reason}
              </span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
