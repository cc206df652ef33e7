/** What a person decides for themselves: how it looks, their password, passkeys, sessions and personal tokens. */
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { projects, whoAmI } from "../api/queries/identity";
import { useTitle } from "../parts/title";
import { Definition, PageHead, Panel } from "../parts/ui";
import { Appearance } from "./settings/Appearance";
import { Passkeys } from "./settings/Passkeys";
import { Password } from "./settings/Password";
import { PersonalTokens, Sessions } from "./settings/Tokens";

export function Settings() {
  useTitle("My settings");
  const me = useQuery(whoAmI).data;
  return (
    <>
      <PageHead title="My settings" sub={me?.email ?? undefined} />
      <div className="grid gap-5 xl:grid-cols-[minmax(0,1fr)_22rem]">
        <div className="min-w-0 space-y-5 max-xl:order-2">
          <Passkeys />
          <Sessions />
          <PersonalTokens />
        </div>
        <div className="min-w-0 space-y-5 max-xl:order-1">
          {me && <Profile me={me} />}
          <Appearance />
          <Password />
        </div>
      </div>
    </>
  );
}

function Profile({ me }: { me: Schemas["WhoAmI"] }) {
  const known = useQuery(projects).data?.items ?? [];
  const place = (role: string, projectId: string | null) =>
    projectId === null
      ? role.startsWith("platform")
        ? ""
        : "everywhere in the tenant"
      : `in ${known.find((each) => each.id === projectId)?.slug ?? projectId}`;
  return (
    <Panel title="Profile">
      <dl className="grid grid-cols-2 gap-3 p-4">
        <Definition label="Name">{me.display_name ?? "–"}</Definition>
        <Definition label="E-mail">{me.email ?? "–"}</Definition>
        <Definition label="Roles" wide>
          {me.roles.length === 0 ? (
            <span className="text-muted">None yet. An admin of the tenant gives you one.</span>
          ) : (
            <ul className="space-y-1">
              {me.roles.map((each) => (
                <li key={`${each.role} ${each.project_id}`}>
                  {each.role.replaceAll("_", " ")}{" "}
                  <span className="text-muted">{place(each.role, each.project_id)}</span>
                </li>
              ))}
            </ul>
          )}
        </Definition>
      </dl>
    </Panel>
  );
}
