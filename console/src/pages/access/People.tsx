/** The people of the tenant: their roles by place, when they were last here, invitations, and what an admin may do. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { type Membership, memberships, projects, users, userTokens, whoAmI } from "../../api/queries/identity";
import { announce } from "../../parts/announcer";
import { DataTable } from "../../parts/DataTable";
import { ActionDialog } from "../../parts/Dialog";
import { FilterBar, TextFilter } from "../../parts/Filters";
import { OneTimeSecret } from "../../parts/OneTimeSecret";
import { Ago } from "../../parts/time";
import { Button, Empty, RowButtons } from "../../parts/ui";
import { GiveRole, Invite, type Place } from "./RoleDialogs";

export type User = Schemas["UserView"];
type Change = "disable" | "enable" | "reset" | "sign-out";
type Open = { kind: "invite" } | { kind: "role" | Change; user: User } | { kind: "take"; user: User; role: Membership };

const NEEDS = "user.update";

export function People({ tenantId }: { tenantId: string }) {
  const queries = useQueryClient();
  const navigate = useNavigate();
  const { q } = useSearch({ from: "/shell/access" });
  const me = useQuery(whoAmI).data;
  const known = useQuery(projects).data?.items ?? [];
  const held = me?.tenant_actions ?? [];
  const listed = useQuery(users(tenantId));
  const roles = useQuery(
    memberships(
      tenantId,
      known.map((each) => each.id),
      held.includes("membership.read"),
    ),
  );
  const tokens = useQuery({ ...userTokens(tenantId), enabled: held.includes("user_token.read") });
  const [open, setOpen] = useState<Open | null>(null);
  const [code, setCode] = useState<{ email: string; code: string } | null>(null);
  const lacks = (key: string) => (held.includes(key) ? undefined : `You need ${key}; an admin of the tenant has it`);
  const places: Place[] = [
    ...(held.includes("membership.create") ? [{ id: null, name: "the whole tenant" }] : []),
    ...known.map((each) => ({ id: each.id, name: each.slug })),
  ];
  const nameOf = (id: string | null) => places.find((each) => each.id === id)?.name ?? (id === null ? "tenant" : id);
  const reload = async (said: string) => {
    announce(said);
    await Promise.all([
      queries.invalidateQueries(users(tenantId)),
      queries.invalidateQueries({ queryKey: ["memberships"] }),
    ]);
  };
  const close = () => setOpen(null);
  const word = q?.toLowerCase() ?? "";
  const items = listed.data?.items.filter((each) => `${each.email} ${each.display_name}`.toLowerCase().includes(word));
  return (
    <>
      <FilterBar isFiltered={word !== ""} clear={() => void navigate({ to: "/access", search: { tab: "people" } })}>
        <TextFilter
          label="Find people"
          value={q}
          onChange={(value) => void navigate({ to: "/access", search: { tab: "people", q: value }, replace: true })}
        />
      </FilterBar>
      <DataTable
        title="People"
        label="People of the tenant"
        query={{ data: items && { items }, error: listed.error, refetch: listed.refetch }}
        rowKey={(row) => row.id}
        aside={
          <Button look="primary" onClick={() => setOpen({ kind: "invite" })} disabledReason={lacks("user.create")}>
            Invite somebody
          </Button>
        }
        empty={
          <Empty
            title={word ? "Nobody has this in their name or address" : "Nobody yet"}
            command="mooring users create"
          >
            People sign in with a password, a passkey, or at a provider of the tenant.
          </Empty>
        }
        columns={[
          {
            head: "Person",
            narrow: "line",
            cell: (row) => (
              <div className="min-w-0">
                <p className="font-medium">
                  {row.display_name}
                  {row.id === me?.id && <span className="ml-2 text-xs font-normal text-muted">you</span>}
                </p>
                <p className="text-xs break-all text-muted">{row.email}</p>
              </div>
            ),
          },
          { head: "State", cell: (row) => <State user={row} /> },
          {
            head: "Roles",
            narrow: "line",
            cell: (row) => (
              <Chips
                roles={roles.data?.filter((each) => each.user_id === row.id)}
                nameOf={nameOf}
                take={(role) => setOpen({ kind: "take", user: row, role })}
              />
            ),
          },
          {
            head: "Last used",
            cell: (row) => {
              const used = (tokens.data?.items ?? [])
                .filter((each) => each.user_id === row.id && each.last_used_at)
                .map((each) => each.last_used_at as string)
                .toSorted();
              const last = used.at(-1);
              return last ? <Ago at={last} /> : <span className="text-muted">not signed in</span>;
            },
          },
          {
            head: "Actions",
            isNumber: true,
            cell: (row) => (
              <RowButtons>
                <Button
                  look="ghost"
                  onClick={() => setOpen({ kind: "role", user: row })}
                  disabledReason={lacks("membership.create")}
                >
                  Give a role
                </Button>
                <Button
                  look="ghost"
                  onClick={() => setOpen({ kind: "sign-out", user: row })}
                  disabledReason={lacks("user_token.revoke")}
                >
                  Sign out
                </Button>
                <Button
                  look="ghost"
                  onClick={() => setOpen({ kind: "reset", user: row })}
                  disabledReason={lacks(NEEDS)}
                >
                  Reset
                </Button>
                <Button
                  look="ghost"
                  onClick={() => setOpen({ kind: row.disabled ? "enable" : "disable", user: row })}
                  disabledReason={row.id === me?.id ? "Nobody disables themselves" : lacks(NEEDS)}
                >
                  {row.disabled ? "Enable" : "Disable"}
                </Button>
              </RowButtons>
            ),
          },
        ]}
      />
      {open?.kind === "invite" && (
        <Invite
          tenantId={tenantId}
          places={places}
          close={close}
          done={async (made) => {
            setOpen(null);
            setCode({ email: made.email, code: made.one_time_code });
            await reload(`${made.email} is invited`);
          }}
        />
      )}
      {open?.kind === "role" && (
        <GiveRole
          tenantId={tenantId}
          user={open.user}
          places={places}
          close={close}
          done={() => reload("The role is given")}
        />
      )}
      {open?.kind === "take" && (
        <TakeRole
          tenantId={tenantId}
          open={open}
          place={nameOf(open.role.project_id)}
          close={close}
          done={() => reload("The role is taken away")}
        />
      )}
      {(open?.kind === "disable" || open?.kind === "enable" || open?.kind === "reset" || open?.kind === "sign-out") && (
        <ChangeUser
          tenantId={tenantId}
          user={open.user}
          change={open.kind}
          close={close}
          done={async (newCode) => {
            if (newCode) {
              setOpen(null);
              setCode({ email: open.user.email, code: newCode });
            }
            await reload("Done");
          }}
        />
      )}
      {code && (
        <OneTimeSecret title={`One-time code for ${code.email}`} secret={code.code} close={() => setCode(null)}>
          Give it to them by a way that you trust. They sign in with it and set a password. It is valid for a day, once,
          and is not shown again.
        </OneTimeSecret>
      )}
    </>
  );
}

function State({ user }: { user: User }) {
  const [text, look] = user.disabled
    ? ["disabled", "bg-bad-soft text-bad"]
    : user.has_password
      ? ["active", "bg-good-soft text-good"]
      : ["no password", "bg-warn-soft text-warn"];
  const title = text === "no password" ? "Invited, reset, or signs in at a provider or with a passkey" : undefined;
  return (
    <span title={title} className={`rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap ${look}`}>
      {text}
    </span>
  );
}

interface ChipsProps {
  roles: Membership[] | undefined;
  nameOf: (id: string | null) => string;
  take: (role: Membership) => void;
}

function Chips({ roles, nameOf, take }: ChipsProps) {
  if (!roles) return <span className="text-muted">…</span>;
  if (roles.length === 0) return <span className="text-muted">none</span>;
  return (
    <ul className="flex flex-wrap gap-1">
      {roles.map((each) => {
        const text = `${each.role.replaceAll("_", " ")} · ${nameOf(each.project_id)}`;
        const may = each.allowed_actions.includes("membership.delete");
        return (
          <li key={each.id}>
            <button
              type="button"
              aria-disabled={!may || undefined}
              aria-label={`Take away: ${text}`}
              title={may ? "Take this role away" : "You need membership.delete to take it away"}
              onClick={() => may && take(each)}
              className="inline-flex items-center gap-1 rounded-md bg-sunken px-2 py-0.5 text-xs hover:bg-accent-soft aria-disabled:cursor-not-allowed"
            >
              {text}
              {each.identity_provider_id && <span className="text-muted">(by groups)</span>}
              {may && <span aria-hidden>×</span>}
            </button>
          </li>
        );
      })}
    </ul>
  );
}

interface TakeRoleProps {
  tenantId: string;
  open: { user: User; role: Membership };
  place: string;
  close: () => void;
  done: () => Promise<void>;
}

function TakeRole({ tenantId, open: { user, role }, place, close, done }: TakeRoleProps) {
  const where = role.project_id === null ? `--tenant ${tenantId}` : `--project ${role.project_id}`;
  return (
    <ActionDialog
      title={`Take the role ${role.role.replaceAll("_", " ")} from ${user.display_name}`}
      confirm="Take it away"
      danger
      command={`mooring memberships delete ${role.id} ${where}`}
      close={close}
      act={async (key) => {
        const header = { "Idempotency-Key": key };
        await answer(
          role.project_id === null
            ? api.DELETE("/api/v1/tenants/{tenant_id}/memberships/{membership_id}", {
                params: { path: { tenant_id: tenantId, membership_id: role.id }, header },
              })
            : api.DELETE("/api/v1/projects/{project_id}/memberships/{membership_id}", {
                params: { path: { project_id: role.project_id, membership_id: role.id }, header },
              }),
        );
        await done();
      }}
    >
      <p>
        They lose it in {place} at once, and their open pages of it close. What they started keeps running.
        {role.identity_provider_id &&
          " A group of the identity provider gave it, and gives it again at their next sign-in."}
      </p>
      {role.role === "tenant_admin" && (
        <p className="rounded-md bg-warn-soft p-3 text-warn">
          A tenant always keeps one admin who can sign in. If this is the last one, the platform refuses: make somebody
          else an admin first.
        </p>
      )}
    </ActionDialog>
  );
}

const CHANGES: Record<Change, { title: string; confirm: string; text: string; danger?: boolean }> = {
  disable: {
    title: "Disable",
    confirm: "Disable them",
    text: "They cannot sign in any more, and all their sessions and tokens stop working. Their roles stay, for when you enable them again.",
    danger: true,
  },
  enable: { title: "Enable", confirm: "Enable them", text: "They can sign in again, with the roles that they had." },
  reset: {
    title: "Reset",
    confirm: "Reset them",
    text: "Their password, passkeys, sessions and tokens stop working. You get a one-time code for them, which is shown once.",
    danger: true,
  },
  "sign-out": {
    title: "Sign out",
    confirm: "Sign them out",
    text: "All their sessions end and all their personal tokens are revoked. Their password and passkeys stay.",
    danger: true,
  },
};

interface ChangeUserProps {
  tenantId: string;
  user: User;
  change: Change;
  close: () => void;
  done: (code?: string) => Promise<void>;
}

function ChangeUser({ tenantId, user, change, close, done }: ChangeUserProps) {
  const { title, confirm, text, danger } = CHANGES[change];
  return (
    <ActionDialog
      title={`${title} ${user.display_name}`}
      confirm={confirm}
      danger={danger}
      stays={change === "reset"}
      command={`mooring users ${change} ${user.id} --tenant ${tenantId}`}
      close={close}
      act={async (key) => {
        const params = { path: { tenant_id: tenantId, user_id: user.id }, header: { "Idempotency-Key": key } };
        const base = "/api/v1/tenants/{tenant_id}/users/{user_id}" as const;
        if (change === "reset") {
          const reset = await answer(api.POST(`${base}/reset`, { params }));
          await done(reset.one_time_code);
          return;
        }
        if (change === "disable") await answer(api.POST(`${base}/disable`, { params }));
        else if (change === "enable") await answer(api.POST(`${base}/enable`, { params }));
        else await answer(api.POST(`${base}/sign-out`, { params }));
        await done();
      }}
    >
      <p>{text}</p>
      <p className="text-xs break-all text-muted">{user.email}</p>
    </ActionDialog>
  );
}
