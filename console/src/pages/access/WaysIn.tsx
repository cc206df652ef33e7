/** How people of the tenant sign in: identity providers, and the networks from which they may. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { identityProviders, sourceNetworks, whoAmI } from "../../api/queries/identity";
import { announce } from "../../parts/announcer";
import { DataTable } from "../../parts/DataTable";
import { ActionDialog } from "../../parts/Dialog";
import { Labelled } from "../../parts/SchemaForm";
import { Button, CopyButton, Empty, Panel, ProblemBox, RowButtons, Skeleton } from "../../parts/ui";

type Provider = Schemas["IdentityProviderView"];
type Open = { kind: "create" } | { kind: "switch" | "delete"; provider: Provider };
const KEY = "identity_provider.update";

export function WaysIn({ tenantId }: { tenantId: string }) {
  return (
    <div className="space-y-5">
      <Providers tenantId={tenantId} />
      <Networks tenantId={tenantId} />
      <Panel title="Passwords and passkeys">
        <p className="p-4 text-muted">
          Everybody sets their own password with a one-time code, and adds passkeys in their settings. An admin sees
          neither, and can reset both.
        </p>
      </Panel>
    </div>
  );
}

function Providers({ tenantId }: { tenantId: string }) {
  const queries = useQueryClient();
  const query = useQuery(identityProviders(tenantId));
  const held = useQuery(whoAmI).data?.tenant_actions ?? [];
  const [open, setOpen] = useState<Open | null>(null);
  const lacks = held.includes(KEY) ? undefined : `You need ${KEY}; an admin of the tenant has it`;
  const done = async (said: string) => {
    announce(said);
    await queries.invalidateQueries(identityProviders(tenantId));
  };
  const close = () => setOpen(null);
  return (
    <>
      <DataTable
        title="Identity providers"
        label="Identity providers"
        query={query}
        rowKey={(row) => row.id}
        aside={
          <Button onClick={() => setOpen({ kind: "create" })} disabledReason={lacks}>
            Add a provider
          </Button>
        }
        empty={
          <Empty title="No identity provider" command="mooring identity-providers create --help">
            With one, people sign in with the account that they have already, and its groups give them roles.
          </Empty>
        }
        columns={[
          {
            head: "Provider",
            narrow: "line",
            cell: (row) => (
              <div className="min-w-0">
                <p className="font-medium">{row.name}</p>
                <p className="text-xs break-all text-muted">{row.issuer}</p>
              </div>
            ),
          },
          {
            head: "State",
            cell: (row) => (
              <span
                className={`rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap ${row.disabled_at ? "bg-sunken text-muted" : "bg-good-soft text-good"}`}
              >
                {row.disabled_at ? "disabled" : "in use"}
              </span>
            ),
          },
          {
            head: "Who",
            narrow: "line",
            cell: (row) => (
              <span className="text-xs">
                {row.email_domains.length ? `@${row.email_domains.join(", @")}` : "any address"}
                {row.create_users ? "; new people become users" : "; only people who are users"}
                {row.link_by_email && "; linked by verified address"}
              </span>
            ),
          },
          {
            head: "Groups",
            cell: (row) => (
              <span
                className="whitespace-nowrap"
                title={row.group_roles.map((each) => `${each.group}: ${each.role}`).join("\n") || undefined}
              >
                {["none gives a role", "1 gives a role"][row.group_roles.length] ??
                  `${row.group_roles.length} give roles`}
              </span>
            ),
          },
          {
            head: "Redirect URI",
            narrow: "line",
            cell: (row) =>
              row.redirect_uri && (
                <span className="inline-flex max-w-56 items-center gap-1">
                  <code className="truncate font-mono text-xs" title={row.redirect_uri}>
                    {row.redirect_uri}
                  </code>
                  <CopyButton text={row.redirect_uri} label="Copy the redirect URI" />
                </span>
              ),
          },
          {
            head: "Actions",
            isNumber: true,
            cell: (row) => (
              <RowButtons>
                <Button look="ghost" onClick={() => setOpen({ kind: "switch", provider: row })} disabledReason={lacks}>
                  {row.disabled_at ? "Enable" : "Disable"}
                </Button>
                <Button look="ghost" onClick={() => setOpen({ kind: "delete", provider: row })} disabledReason={lacks}>
                  Delete
                </Button>
              </RowButtons>
            ),
          },
        ]}
      />
      {open?.kind === "create" && (
        <AddProvider tenantId={tenantId} close={close} done={() => done("The provider is added")} />
      )}
      {open?.kind === "switch" && (
        <ActionDialog
          title={`${open.provider.disabled_at ? "Enable" : "Disable"} ${open.provider.name}`}
          confirm={open.provider.disabled_at ? "Enable it" : "Disable it"}
          danger={!open.provider.disabled_at}
          command={`mooring identity-providers update ${open.provider.id} --tenant ${tenantId}${open.provider.disabled_at ? " --no-disabled" : " --disabled"}`}
          close={close}
          act={async (key) => {
            await answer(
              api.PATCH("/api/v1/tenants/{tenant_id}/identity-providers/{identity_provider_id}", {
                params: {
                  path: { tenant_id: tenantId, identity_provider_id: open.provider.id },
                  header: { "Idempotency-Key": key },
                },
                body: { disabled: open.provider.disabled_at === null },
              }),
            );
            await done("Done");
          }}
        >
          <p>
            {open.provider.disabled_at
              ? "People can sign in with it again."
              : "Nobody signs in with it until you enable it. Sessions that began with it stay until they end."}
          </p>
        </ActionDialog>
      )}
      {open?.kind === "delete" && (
        <ActionDialog
          title={`Delete ${open.provider.name}`}
          confirm="Delete it"
          danger
          command={`mooring identity-providers delete ${open.provider.id} --tenant ${tenantId}`}
          close={close}
          act={async (key) => {
            await answer(
              api.DELETE("/api/v1/tenants/{tenant_id}/identity-providers/{identity_provider_id}", {
                params: {
                  path: { tenant_id: tenantId, identity_provider_id: open.provider.id },
                  header: { "Idempotency-Key": key },
                },
              }),
            );
            await done("The provider is deleted");
          }}
        >
          <p>
            The platform forgets which user is which person there. The users stay, with the roles that they have now,
            and need another way to sign in: reset them for a one-time code.
          </p>
        </ActionDialog>
      )}
    </>
  );
}

const EMPTY = { name: "", issuer: "", client_id: "", client_secret: "", domains: "" };

function AddProvider({ tenantId, close, done }: { tenantId: string; close: () => void; done: () => Promise<void> }) {
  const [form, setForm] = useState(EMPTY);
  const [isOpen, setOpen] = useState(true);
  const domains = form.domains.split(/[\s,]+/).filter(Boolean);
  const field = (name: keyof typeof EMPTY, label: string, help: string, more: React.ComponentProps<"input"> = {}) => (
    <Labelled id={`idp-${name}`} label={label} help={help}>
      <input
        id={`idp-${name}`}
        className="field"
        value={form[name]}
        onChange={(event) => setForm({ ...form, [name]: event.target.value })}
        {...more}
      />
    </Labelled>
  );
  return (
    <ActionDialog
      title="Add an identity provider"
      confirm="Add it"
      command={`mooring identity-providers create --tenant ${tenantId} --name '${form.name || "NAME"}' --issuer ${form.issuer || "ISSUER"} --client ${form.client_id || "ID"} --client-secret-file secret.txt${domains.map((each) => ` --email-domain ${each}`).join("")}`}
      close={close}
      act={async (key) => {
        await answer(
          api.POST("/api/v1/tenants/{tenant_id}/identity-providers", {
            params: { path: { tenant_id: tenantId }, header: { "Idempotency-Key": key } },
            body: {
              name: form.name.trim(),
              issuer: form.issuer.trim(),
              client_id: form.client_id.trim(),
              client_secret: form.client_secret || null,
              email_domains: domains,
              create_users: isOpen,
            },
          }),
        );
        await done();
      }}
    >
      {field("name", "Name", "What the button says: Continue with …", { required: true, maxLength: 100 })}
      {field("issuer", "Issuer", "Its address, without /.well-known/openid-configuration.", {
        required: true,
        type: "url",
      })}
      {field("client_id", "Client id", "The name of this platform at the provider.", {
        required: true,
        maxLength: 200,
      })}
      {field("client_secret", "Client secret", "Sealed at once, never shown again. Empty for a public client.", {
        type: "password",
        autoComplete: "off",
      })}
      {field("domains", "E-mail domains", "Only people with a verified address in one of these. Empty: any.")}
      <label className="flex items-center gap-2">
        <input
          type="checkbox"
          className="size-4 accent-accent"
          checked={isOpen}
          onChange={(event) => setOpen(event.target.checked)}
        />
        New people become users with their first sign-in
      </label>
      <p className="text-xs text-muted">
        The list then shows the redirect URI to register there. Which groups give which roles is set by{" "}
        <code className="font-mono">mooring identity-providers update --group-roles</code>.
      </p>
    </ActionDialog>
  );
}

function Networks({ tenantId }: { tenantId: string }) {
  const queries = useQueryClient();
  const query = useQuery(sourceNetworks(tenantId));
  const held = useQuery(whoAmI).data?.tenant_actions ?? [];
  const [isEditing, setEditing] = useState(false);
  const found = query.data;
  return (
    <Panel
      title="Source networks"
      aside={
        <Button
          onClick={() => setEditing(true)}
          disabledReason={
            held.includes("source_network.update") ? undefined : "You need source_network.update; an admin has it"
          }
        >
          Change
        </Button>
      }
    >
      {query.error ? (
        <ProblemBox error={query.error} retry={() => void query.refetch()} />
      ) : !found ? (
        <Skeleton rows={2} />
      ) : (
        <div className="space-y-2 p-4">
          {found.networks.length === 0 ? (
            <p>People and service accounts may call from everywhere.</p>
          ) : (
            <ul className="flex flex-wrap gap-1.5 font-mono text-xs">
              {found.networks.map((each) => (
                <li key={each} className="rounded bg-sunken px-2 py-1">
                  {each}
                </li>
              ))}
            </ul>
          )}
          <p className="text-xs text-muted">
            Your own address, as the platform sees it: {found.your_address ?? "unknown"}.
          </p>
        </div>
      )}
      {isEditing && found && (
        <EditNetworks
          tenantId={tenantId}
          found={found}
          close={() => setEditing(false)}
          done={async () => {
            announce("The source networks are changed");
            await queries.invalidateQueries(sourceNetworks(tenantId));
          }}
        />
      )}
    </Panel>
  );
}

interface EditNetworksProps {
  tenantId: string;
  found: Schemas["SourceNetworksView"];
  close: () => void;
  done: () => Promise<void>;
}

function EditNetworks({ tenantId, found, close, done }: EditNetworksProps) {
  const [text, setText] = useState(found.networks.join("\n"));
  const networks = text.split(/[\s,]+/).filter(Boolean);
  return (
    <ActionDialog
      title="Change the source networks"
      confirm="Change them"
      danger
      command={`mooring source-networks update --tenant ${tenantId}${networks.map((each) => ` --network ${each}`).join("")}`}
      close={close}
      act={async (key) => {
        await answer(
          api.PUT("/api/v1/tenants/{tenant_id}/source-networks", {
            params: { path: { tenant_id: tenantId }, header: { "Idempotency-Key": key } },
            body: { networks, revision: found.revision },
          }),
        );
        await done();
      }}
    >
      <p>
        Requests from elsewhere are refused at once, whatever token they bring; open pages close. A list without your
        own address ({found.your_address ?? "unknown"}) is refused, so that you do not lock yourself out.
      </p>
      <Labelled id="networks" label="Networks" help="One on each line, such as 192.0.2.0/24. Empty: from everywhere.">
        <textarea
          id="networks"
          rows={5}
          className="field font-mono"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
      </Labelled>
    </ActionDialog>
  );
}
