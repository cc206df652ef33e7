/** Dialogs that give somebody a role: a new person by an invitation, or one who is here. */
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { ActionDialog } from "../../parts/Dialog";
import { Labelled } from "../../parts/SchemaForm";

export interface Place {
  /** A project's id; null for the tenant itself. */
  id: string | null;
  name: string;
}

type Role = Schemas["Role"];
const ROLES: Record<"tenant" | "project", Role[]> = {
  tenant: ["tenant_admin"],
  project: ["project_viewer", "project_member", "project_admin"],
};
const SAYS: Partial<Record<Role, string>> = {
  tenant_admin: "Everything in the tenant and in each of its projects.",
  project_viewer: "Sees everything in the project and changes nothing.",
  project_member: "Launches, connects and stops.",
  project_admin: "Also people, service accounts, budgets and secrets of the project.",
};

interface Chosen {
  place: Place | undefined;
  role: Role;
}

function useChosen(places: Place[]) {
  const [index, setIndex] = useState(places.length > 1 && places[0]?.id === null ? 1 : 0);
  const place = places[index];
  const fitting = ROLES[place?.id === null ? "tenant" : "project"];
  const [wanted, setRole] = useState<Role>("project_member");
  const role = fitting.includes(wanted) ? wanted : (fitting[0] as Role);
  const fields = (
    <div className="grid grid-cols-1 gap-4 sm:grid-cols-2">
      <Labelled id="role-place" label="Where">
        <select
          id="role-place"
          className="field"
          value={index}
          onChange={(event) => setIndex(Number(event.target.value))}
        >
          {places.map((each, position) => (
            <option key={each.id ?? "tenant"} value={position}>
              {each.name}
            </option>
          ))}
        </select>
      </Labelled>
      <Labelled id="role-name" label="Role" help={SAYS[role]}>
        <select id="role-name" className="field" value={role} onChange={(event) => setRole(event.target.value as Role)}>
          {fitting.map((each) => (
            <option key={each} value={each}>
              {each.replaceAll("_", " ")}
            </option>
          ))}
        </select>
      </Labelled>
    </div>
  );
  return { place, role, fields };
}

async function give(tenantId: string, userId: string, { place, role }: Chosen, key: string): Promise<void> {
  if (!place) return;
  const body = { user_id: userId, role };
  const header = { "Idempotency-Key": `${key}-role` };
  await answer(
    place.id === null
      ? api.POST("/api/v1/tenants/{tenant_id}/memberships", { params: { path: { tenant_id: tenantId }, header }, body })
      : api.POST("/api/v1/projects/{project_id}/memberships", {
          params: { path: { project_id: place.id }, header },
          body,
        }),
  );
}

function whereOf(tenantId: string, place: Place | undefined): string {
  return place?.id ? `--project ${place.name}` : `--tenant ${tenantId}`;
}

interface InviteProps {
  tenantId: string;
  places: Place[];
  close: () => void;
  done: (made: Schemas["UserCreated"]) => Promise<void>;
}

export function Invite({ tenantId, places, close, done }: InviteProps) {
  const [email, setEmail] = useState("");
  const [name, setName] = useState("");
  const { place, role, fields } = useChosen(places);
  return (
    <ActionDialog
      title="Invite somebody"
      confirm="Invite them"
      stays
      command={`mooring users create --tenant ${tenantId} --email ${email || "EMAIL"} --display-name '${name || "NAME"}'\nmooring memberships create ${whereOf(tenantId, place)} --user USER --role ${role}`}
      close={close}
      act={async (key) => {
        const made = await answer(
          api.POST("/api/v1/tenants/{tenant_id}/users", {
            params: { path: { tenant_id: tenantId }, header: { "Idempotency-Key": key } },
            body: { email: email.trim(), display_name: name.trim() },
          }),
        );
        await give(tenantId, made.id, { place, role }, key);
        await done(made);
      }}
    >
      <p>They get a one-time code from you, which the next step shows once.</p>
      <Labelled id="invite-email" label="E-mail address">
        <input
          id="invite-email"
          type="email"
          className="field"
          required
          value={email}
          onChange={(event) => setEmail(event.target.value)}
        />
      </Labelled>
      <Labelled id="invite-name" label="Name">
        <input
          id="invite-name"
          className="field"
          required
          maxLength={200}
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
      </Labelled>
      {fields}
    </ActionDialog>
  );
}

interface GiveRoleProps {
  tenantId: string;
  user: Schemas["UserView"];
  places: Place[];
  close: () => void;
  done: () => Promise<void>;
}

export function GiveRole({ tenantId, user, places, close, done }: GiveRoleProps) {
  const { place, role, fields } = useChosen(places);
  return (
    <ActionDialog
      title={`Give ${user.display_name} a role`}
      confirm="Give it"
      command={`mooring memberships create ${whereOf(tenantId, place)} --user ${user.id} --role ${role}`}
      close={close}
      act={async (key) => {
        await give(tenantId, user.id, { place, role }, key);
        await done();
      }}
    >
      <p>You can give a role only if you hold everything that it allows.</p>
      {fields}
    </ActionDialog>
  );
}
