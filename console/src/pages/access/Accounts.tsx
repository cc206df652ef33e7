/** Service accounts of the projects, with their keys: the public halves; nobody here ever has the private one. */
import { useQueries, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { accountKeys, projects, serviceAccounts } from "../../api/queries/identity";
import { announce } from "../../parts/announcer";
import { DataTable } from "../../parts/DataTable";
import { ActionDialog } from "../../parts/Dialog";
import { Choice, FilterBar } from "../../parts/Filters";
import { Labelled } from "../../parts/SchemaForm";
import { Status } from "../../parts/Status";
import { Ago } from "../../parts/time";
import { Button, Empty, RowButtons } from "../../parts/ui";

type Account = Schemas["ServiceAccountView"];
type Key = Schemas["KeyView"];
type Open = { account: Account; kind: "key" | "disable" | "enable" } | { account: Account; kind: "revoke"; held: Key };

export function Accounts() {
  const navigate = useNavigate();
  const queries = useQueryClient();
  const { project } = useSearch({ from: "/shell/access" });
  const known = useQuery(projects).data?.items;
  const slugs = known?.map((each) => each.slug) ?? [];
  const shown = known?.filter((each) => project === undefined || each.slug === project);
  const query = useQuery({ ...serviceAccounts(shown?.map((each) => each.id) ?? []), enabled: shown !== undefined });
  const items = query.data?.items.filter((each) => each.status !== "deleted");
  const keys = useQueries({ queries: (items ?? []).map((each) => accountKeys(each.project_id, each.id)) });
  const [open, setOpen] = useState<Open | null>(null);
  const slugOf = (id: string) => known?.find((each) => each.id === id)?.slug ?? id;
  const keysOf = (account: Account) => {
    const found = keys[items?.indexOf(account) ?? -1]?.data?.items;
    return found?.filter((each) => each.revoked_at === null);
  };
  const lacks = (account: Account, key: string) =>
    account.allowed_actions.includes(key) ? undefined : `You need ${key}; an admin of the project has it`;
  const done = async (said: string) => {
    announce(said);
    await queries.invalidateQueries({ queryKey: ["service-accounts"] });
    await queries.invalidateQueries({ queryKey: ["account-keys"] });
  };
  return (
    <>
      <FilterBar
        isFiltered={project !== undefined}
        clear={() => void navigate({ to: "/access", search: { tab: "accounts" } })}
      >
        <Choice
          label="Project"
          words={slugs}
          value={project}
          onChange={(value) => void navigate({ to: "/access", search: { tab: "accounts", project: value } })}
        />
      </FilterBar>
      <DataTable
        title="Service accounts"
        label="Service accounts"
        query={{ data: items && { items }, error: query.error, refetch: query.refetch }}
        rowKey={(row) => row.id}
        empty={
          <Empty
            title="No service account"
            command={`mooring service-accounts create --project ${slugs[0] ?? "PROJECT"} --name ci --action instance.read`}
          >
            Automation acts as a service account: it signs with a key of its own, and may do only what its list says.
          </Empty>
        }
        columns={[
          {
            head: "Account",
            narrow: "line",
            cell: (row) => (
              <div className="min-w-0">
                <p className="font-medium">{row.name}</p>
                <p className="text-xs text-muted">
                  {slugOf(row.project_id)}
                  {row.description && ` · ${row.description}`}
                </p>
              </div>
            ),
          },
          { head: "State", cell: (row) => <Status kind="service_account" value={row.status} /> },
          {
            head: "May do",
            cell: (row) => (
              <details>
                <summary className="whitespace-nowrap">
                  {row.actions.length === 1 ? "1 action" : `${row.actions.length} actions`}
                </summary>
                <ul className="mt-1 font-mono text-xs text-muted">
                  {row.actions.map((each) => (
                    <li key={each}>{each}</li>
                  ))}
                </ul>
              </details>
            ),
          },
          {
            head: "Keys",
            narrow: "line",
            cell: (row) => (
              <Keys
                keys={keysOf(row)}
                lacks={lacks(row, "service_account.key.revoke")}
                revoke={(held) => setOpen({ account: row, kind: "revoke", held })}
              />
            ),
          },
          {
            head: "Actions",
            isNumber: true,
            cell: (row) => (
              <RowButtons>
                <Button
                  look="ghost"
                  onClick={() => setOpen({ account: row, kind: "key" })}
                  disabledReason={lacks(row, "service_account.key.create")}
                >
                  Add a key
                </Button>
                <Button
                  look="ghost"
                  onClick={() => setOpen({ account: row, kind: row.status === "active" ? "disable" : "enable" })}
                  disabledReason={lacks(row, `service_account.${row.status === "active" ? "disable" : "enable"}`)}
                >
                  {row.status === "active" ? "Disable" : "Enable"}
                </Button>
              </RowButtons>
            ),
          },
        ]}
      />
      {open?.kind === "key" && (
        <AddKey account={open.account} close={() => setOpen(null)} done={() => done("The key is added")} />
      )}
      {open?.kind === "revoke" && (
        <ActionDialog
          title={`Revoke a key of ${open.account.name}`}
          confirm="Revoke it"
          danger
          command={`mooring service-accounts keys revoke ${open.account.name} ${open.held.id} --project ${slugOf(open.account.project_id)}`}
          close={() => setOpen(null)}
          act={async (key) => {
            const path = {
              project_id: open.account.project_id,
              service_account_id: open.account.id,
              key_id: open.held.id,
            };
            await answer(
              api.DELETE("/api/v1/projects/{project_id}/service-accounts/{service_account_id}/keys/{key_id}", {
                params: { path, header: { "Idempotency-Key": key } },
              }),
            );
            await done("The key is revoked");
          }}
        >
          <p>
            Tokens that it signed for stop working at once. To rotate a key, add the new one first, give it to the
            program, and then revoke this one.
          </p>
          <p className="font-mono text-xs break-all text-muted">{open.held.public_key}</p>
        </ActionDialog>
      )}
      {(open?.kind === "disable" || open?.kind === "enable") && (
        <ActionDialog
          title={`${open.kind === "disable" ? "Disable" : "Enable"} ${open.account.name}`}
          confirm={open.kind === "disable" ? "Disable it" : "Enable it"}
          danger={open.kind === "disable"}
          command={`mooring service-accounts ${open.kind} ${open.account.name} --project ${slugOf(open.account.project_id)}`}
          close={() => setOpen(null)}
          act={async (key) => {
            const params = {
              path: { project_id: open.account.project_id, service_account_id: open.account.id },
              header: { "Idempotency-Key": key },
            };
            const base = "/api/v1/projects/{project_id}/service-accounts/{service_account_id}" as const;
            if (open.kind === "disable") await answer(api.POST(`${base}/disable`, { params }));
            else await answer(api.POST(`${base}/enable`, { params }));
            await done("Done");
          }}
        >
          <p>
            {open.kind === "disable"
              ? "Whatever acts as it gets 401 from now on: pipelines, and the adapter if it operates an app. Nothing is deleted."
              : "Its keys count again, with the same list of actions."}
          </p>
        </ActionDialog>
      )}
    </>
  );
}

function Keys({ keys, lacks, revoke }: { keys: Key[] | undefined; lacks?: string; revoke: (key: Key) => void }) {
  if (!keys) return <span className="text-muted">…</span>;
  if (keys.length === 0) return <span className="text-warn">none: it cannot sign in</span>;
  return (
    <ul className="space-y-1">
      {keys.map((each) => (
        <li key={each.id} className="flex flex-wrap items-center gap-x-2 text-xs">
          <code className="font-mono" title={each.public_key}>
            {each.public_key.slice(0, 10)}…
          </code>
          <span className="text-muted">
            added <Ago at={each.created_at} />
            {each.expires_at && (
              <>
                , ends <Ago at={each.expires_at} />
              </>
            )}
          </span>
          <Button
            look="ghost"
            className="min-h-6 px-1.5 py-0 text-xs"
            onClick={() => revoke(each)}
            disabledReason={lacks}
          >
            Revoke
          </Button>
        </li>
      ))}
    </ul>
  );
}

function AddKey({ account, close, done }: { account: Account; close: () => void; done: () => Promise<void> }) {
  const [text, setText] = useState("");
  return (
    <ActionDialog
      title={`Add a key to ${account.name}`}
      confirm="Add it"
      command={`mooring service-accounts keys create ${account.name} --project ${account.project_id} --public-key '${text || "PUBLIC_KEY"}'`}
      close={close}
      act={async (key) => {
        await answer(
          api.POST("/api/v1/projects/{project_id}/service-accounts/{service_account_id}/keys", {
            params: {
              path: { project_id: account.project_id, service_account_id: account.id },
              header: { "Idempotency-Key": key },
            },
            body: { public_key: text.trim() },
          }),
        );
        await done();
      }}
    >
      <p>
        Make the pair where the program runs, so that the private half never leaves it, and paste the public half here.
        Both keys count until you revoke the old one.
      </p>
      <Labelled id="public-key" label="Public key" help="32 bytes of Ed25519 in base64: 44 characters.">
        <input
          id="public-key"
          className="field font-mono"
          required
          minLength={43}
          maxLength={44}
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
      </Labelled>
    </ActionDialog>
  );
}
