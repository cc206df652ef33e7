/** What each role may do, and whether a person may do something somewhere, with the role that says so. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import Check from "lucide-react/icons/check";
import type { Schemas } from "../../api/client";
import { type Membership, memberships, projects, users, whoAmI } from "../../api/queries/identity";
import { reference } from "../../api/queries/reference";
import { FilterBar, TextFilter } from "../../parts/Filters";
import { Labelled } from "../../parts/SchemaForm";
import { Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";

type Action = Schemas["ActionReference"];
type Role = Schemas["Role"];
const SHOWN: Role[] = ["project_viewer", "project_member", "project_admin", "tenant_admin"];

export function Roles({ tenantId }: { tenantId: string }) {
  const query = useQuery(reference);
  return (
    <div className="space-y-5">
      <MayThey tenantId={tenantId} actions={query.data?.actions} />
      {query.error ? (
        <ProblemBox error={query.error} retry={() => void query.refetch()} />
      ) : query.data ? (
        <Matrix actions={query.data.actions} />
      ) : (
        <Skeleton rows={10} />
      )}
    </div>
  );
}

function MayThey({ tenantId, actions }: { tenantId: string; actions: Action[] | undefined }) {
  const navigate = useNavigate();
  const search = useSearch({ from: "/shell/access" });
  const me = useQuery(whoAmI).data;
  const held = me?.tenant_actions ?? [];
  const known = useQuery(projects).data?.items ?? [];
  const people = useQuery({ ...users(tenantId), enabled: held.includes("user.read") });
  const roles = useQuery(
    memberships(
      tenantId,
      known.map((each) => each.id),
      held.includes("membership.read"),
    ),
  );
  const person = people.data?.items.find((each) => each.id === search.user);
  const action = actions?.find((each) => each.key === search.action);
  const place = known.find((each) => each.slug === search.project);
  const set = (change: Partial<typeof search>) =>
    void navigate({ to: "/access", search: { ...search, tab: "roles", ...change }, replace: true });
  return (
    <Panel title="May they do this here?">
      <div className="space-y-4 p-4">
        {held.includes("user.read") ? (
          <div className="grid grid-cols-1 gap-4 md:grid-cols-3">
            <Labelled id="may-user" label="Person">
              <select
                id="may-user"
                className="field"
                value={search.user ?? ""}
                onChange={(event) => set({ user: event.target.value || undefined })}
              >
                <option value="">choose…</option>
                {people.data?.items.map((each) => (
                  <option key={each.id} value={each.id}>
                    {each.display_name} ({each.email})
                  </option>
                ))}
              </select>
            </Labelled>
            <Labelled id="may-action" label="Action" help={action?.meaning}>
              <select
                id="may-action"
                className="field font-mono"
                value={search.action ?? ""}
                onChange={(event) => set({ action: event.target.value || undefined })}
              >
                <option value="">choose…</option>
                {actions?.map((each) => (
                  <option key={each.key} value={each.key}>
                    {each.key}
                  </option>
                ))}
              </select>
            </Labelled>
            <Labelled id="may-place" label="Where">
              <select
                id="may-place"
                className="field"
                value={search.project ?? ""}
                onChange={(event) => set({ project: event.target.value || undefined })}
              >
                <option value="">in the tenant itself</option>
                {known.map((each) => (
                  <option key={each.id} value={each.slug}>
                    in {each.slug}
                  </option>
                ))}
              </select>
            </Labelled>
          </div>
        ) : (
          <p className="text-muted">
            This needs <code className="font-mono text-xs">user.read</code> in the tenant, which its admins have.
          </p>
        )}
        {person && action && roles.data && (
          <Answer
            person={person}
            action={action}
            held={roles.data.filter((each) => each.user_id === person.id)}
            project={place}
          />
        )}
      </div>
    </Panel>
  );
}

interface AnswerProps {
  person: Schemas["UserView"];
  action: Action;
  held: Membership[];
  project: { id: string; slug: string } | undefined;
}

/** The answer as the server would decide it: the roles of the tenant count everywhere, a project's only there. */
function Answer({ person, action, held, project }: AnswerProps) {
  const counting = held.filter((each) => each.project_id === null || each.project_id === project?.id);
  const by = counting.find((each) => action.roles.includes(each.role));
  const where = project ? `in ${project.slug}` : "in the tenant";
  const fitting = SHOWN.filter((each) => action.roles.includes(each) && (project || each === "tenant_admin"));
  const words = (role: string) => role.replaceAll("_", " ");
  if (person.disabled) return <Said isYes={false}>{person.display_name} is disabled and may do nothing at all.</Said>;
  if (by)
    return (
      <Said isYes>
        {person.display_name} may do this {where}: the role <strong>{words(by.role)}</strong>
        {by.project_id === null ? " of the whole tenant" : ` in ${project?.slug}`} has the key.
      </Said>
    );
  return (
    <Said isYes={false}>
      {person.display_name} may not do this {where}: no role of theirs there has the key.{" "}
      {fitting.length
        ? `It comes with: ${fitting.map(words).join(", ")}. An admin of the ${project ? "project or of the tenant" : "tenant"} can give that.`
        : action.roles.length
          ? "Only staff of the platform have it."
          : "No role has it."}
    </Said>
  );
}

function Said({ isYes, children }: { isYes: boolean; children: React.ReactNode }) {
  return (
    <p role="status" className={`rounded-md p-3 ${isYes ? "bg-good-soft text-good" : "bg-warn-soft text-warn"}`}>
      <strong>{isYes ? "Yes. " : "No. "}</strong>
      {children}
    </p>
  );
}

function Matrix({ actions }: { actions: Action[] }) {
  const navigate = useNavigate();
  const search = useSearch({ from: "/shell/access" });
  const word = search.q?.toLowerCase() ?? "";
  const shown = actions.filter(
    (each) =>
      each.roles.some((role) => SHOWN.includes(role)) && `${each.key} ${each.meaning}`.toLowerCase().includes(word),
  );
  const set = (q: string | undefined) =>
    void navigate({ to: "/access", search: { ...search, tab: "roles", q }, replace: true });
  return (
    <>
      <FilterBar isFiltered={word !== ""} clear={() => set(undefined)}>
        <TextFilter label="Find an action" value={search.q} onChange={set} />
      </FilterBar>
      <Panel title="What each role may do">
        {shown.length === 0 ? (
          <Empty title="No action has this word" />
        ) : (
          // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
          <section className="relative overflow-x-auto" tabIndex={0} aria-label="What each role may do">
            <table className="w-full">
              <caption className="sr-only">Action keys by role</caption>
              <thead className="border-b border-line">
                <tr>
                  <th scope="col" className="px-4 py-2 text-left text-xs font-medium text-muted">
                    Action
                  </th>
                  {SHOWN.map((each) => (
                    <th key={each} scope="col" className="px-2 py-2 text-center text-xs font-medium text-muted">
                      {each.replaceAll("_", " ")}
                    </th>
                  ))}
                  <th scope="col" className="px-2 py-2 text-center text-xs font-medium text-muted">
                    service account
                  </th>
                </tr>
              </thead>
              <tbody className="divide-y divide-line">
                {shown.map((each) => (
                  <tr key={each.key} className="hover:bg-sunken">
                    <th scope="row" className="px-4 py-1.5 text-left font-normal">
                      <code className="font-mono text-xs">{each.key}</code>
                      <span className="block text-xs text-muted">{each.meaning}</span>
                    </th>
                    {SHOWN.map((role) => (
                      <Cell key={role} isHeld={each.roles.includes(role)} />
                    ))}
                    <Cell isHeld={each.service_account} />
                  </tr>
                ))}
              </tbody>
            </table>
          </section>
        )}
      </Panel>
    </>
  );
}

function Cell({ isHeld }: { isHeld: boolean }) {
  return (
    <td className="px-2 py-1.5 text-center align-middle">
      {isHeld ? (
        <>
          <Check size={15} className="inline text-good" aria-hidden />
          <span className="sr-only">yes</span>
        </>
      ) : (
        <>
          <span className="text-muted" aria-hidden>
            –
          </span>
          <span className="sr-only">no</span>
        </>
      )}
    </td>
  );
}
