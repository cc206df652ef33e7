/** The person's sessions and personal tokens: where each was made, which one this is, and the end of the others. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { answer, api, type Schemas } from "../../api/client";
import { ownTokens } from "../../api/queries/identity";
import { announce } from "../../parts/announcer";
import { DataTable } from "../../parts/DataTable";
import { ActionDialog } from "../../parts/Dialog";
import { OneTimeSecret } from "../../parts/OneTimeSecret";
import { Labelled } from "../../parts/SchemaForm";
import { Ago } from "../../parts/time";
import { Button, Empty } from "../../parts/ui";
import { browserName } from "../../parts/userAgent";

type Token = Schemas["TokenView"];

function useOwn(kind: Token["kind"]) {
  const query = useQuery(ownTokens);
  const items = query.data?.items.filter((each) => each.kind === kind);
  return { data: items && { items }, error: query.error, refetch: query.refetch };
}

export function Sessions() {
  const query = useOwn("session");
  const queries = useQueryClient();
  const [ending, setEnding] = useState<Token | "others" | null>(null);
  const others = query.data?.items.filter((each) => !each.current).length ?? 0;
  return (
    <>
      <DataTable
        title="Sessions"
        label="My sessions"
        query={query}
        rowKey={(row) => row.id}
        empty={<Empty title="No session" />}
        aside={
          <Button onClick={() => setEnding("others")} disabledReason={others ? undefined : "There is no other session"}>
            End all others
          </Button>
        }
        columns={[
          {
            head: "Program",
            narrow: "line",
            cell: (row) => (
              <span title={row.user_agent ?? undefined} className="font-medium">
                {browserName(row.user_agent)}
                {row.current && (
                  <span className="ml-2 rounded-full bg-good-soft px-2 py-0.5 text-xs font-medium text-good">
                    this session
                  </span>
                )}
              </span>
            ),
          },
          { head: "Address", cell: (row) => <span className="font-mono text-xs">{row.remote_address ?? "–"}</span> },
          { head: "Signed in", cell: (row) => <Narrow word="signed in" at={row.created_at} /> },
          {
            head: "Last used",
            narrow: "hidden",
            cell: (row) => (row.current ? "now" : row.last_used_at ? <Ago at={row.last_used_at} /> : "–"),
          },
          { head: "Ends", narrow: "hidden", cell: (row) => <Ago at={row.expires_at} /> },
          {
            head: "Actions",
            isNumber: true,
            cell: (row) => (
              <Button
                look="ghost"
                className="-my-1 max-md:-ml-3"
                onClick={() => setEnding(row)}
                disabledReason={row.current ? "This is the session in use: sign out instead" : undefined}
              >
                End
              </Button>
            ),
          },
        ]}
      />
      {ending === "others" && (
        <ActionDialog
          title={`End ${others} other ${others === 1 ? "session" : "sessions"}`}
          confirm="End them"
          danger
          command="mooring tokens end-other-sessions"
          close={() => setEnding(null)}
          act={async (key) => {
            await answer(
              api.POST("/api/v1/tokens/end-other-sessions", { params: { header: { "Idempotency-Key": key } } }),
            );
            announce("The other sessions are ended");
            await queries.invalidateQueries(ownTokens);
          }}
        >
          <p>Every browser and command line that is signed in as you has to sign in again. Personal tokens stay.</p>
        </ActionDialog>
      )}
      {ending && ending !== "others" && <Revoke token={ending} what="session" close={() => setEnding(null)} />}
    </>
  );
}

export function PersonalTokens() {
  const query = useOwn("personal");
  const [isCreating, setCreating] = useState(false);
  const [revoked, setRevoked] = useState<Token | null>(null);
  return (
    <>
      <DataTable
        title="Personal tokens"
        label="My personal tokens"
        query={query}
        rowKey={(row) => row.id}
        empty={
          <Empty title="No personal token" command="mooring tokens create --name laptop">
            For scripts and the command line. A token may do at most what you may do.
          </Empty>
        }
        aside={<Button onClick={() => setCreating(true)}>Create a token</Button>}
        columns={[
          { head: "Name", narrow: "line", cell: (row) => <span className="font-medium">{row.name}</span> },
          {
            head: "May do",
            cell: (row) =>
              row.actions === null ? (
                "all that I may"
              ) : (
                <span title={row.actions.join(", ")}>{row.actions.length} actions</span>
              ),
          },
          { head: "Made", narrow: "hidden", cell: (row) => <Ago at={row.created_at} /> },
          {
            head: "Last used",
            narrow: "hidden",
            cell: (row) =>
              row.last_used_at ? <Ago at={row.last_used_at} /> : <span className="text-muted">never</span>,
          },
          { head: "Expires", cell: (row) => <Narrow word="expires" at={row.expires_at} /> },
          {
            head: "Actions",
            isNumber: true,
            cell: (row) => (
              <Button look="ghost" className="-my-1 max-md:-ml-3" onClick={() => setRevoked(row)}>
                Revoke
              </Button>
            ),
          },
        ]}
      />
      {isCreating && <Create close={() => setCreating(false)} />}
      {revoked && <Revoke token={revoked} what="token" close={() => setRevoked(null)} />}
    </>
  );
}

/** A time; on a narrow screen, where columns have no head, with the word that says what of. */
function Narrow({ word, at }: { word: string; at: string }) {
  return (
    <span>
      <span className="text-muted md:hidden">{word} </span>
      <Ago at={at} />
    </span>
  );
}

function Revoke({ token, what, close }: { token: Token; what: "session" | "token"; close: () => void }) {
  const queries = useQueryClient();
  return (
    <ActionDialog
      title={what === "session" ? "End the session" : `Revoke the token ${token.name}`}
      confirm={what === "session" ? "End it" : "Revoke it"}
      danger
      command={`mooring tokens revoke ${token.id}`}
      close={close}
      act={async (key) => {
        await answer(
          api.DELETE("/api/v1/tokens/{token_id}", {
            params: { path: { token_id: token.id }, header: { "Idempotency-Key": key } },
          }),
        );
        announce(what === "session" ? "The session is ended" : "The token is revoked");
        await queries.invalidateQueries(ownTokens);
      }}
    >
      <p>
        {what === "session"
          ? `${browserName(token.user_agent)} at ${token.remote_address ?? "an unknown address"} has to sign in again.`
          : "Whatever uses it gets 401 from now on. This cannot be undone; create a new one instead."}
      </p>
    </ActionDialog>
  );
}

const DAYS = [1, 7, 30, 90];

function Create({ close }: { close: () => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const [days, setDays] = useState(7);
  const [actions, setActions] = useState("");
  const [secret, setSecret] = useState<string | null>(null);
  const listed = actions.split(/[\s,]+/).filter(Boolean);
  if (secret) {
    return (
      <OneTimeSecret title={`Your token ${name}`} secret={secret} close={close}>
        Copy it now. It is shown only this once, and nobody can read it later.
      </OneTimeSecret>
    );
  }
  const limits = listed.map((each) => ` --action ${each}`).join("");
  return (
    <ActionDialog
      title="Create a personal token"
      confirm="Create it"
      command={`mooring tokens create --name '${name || "NAME"}' --expires-in-seconds ${days * 86_400}${limits}`}
      stays
      close={close}
      act={async (key) => {
        const made = await answer(
          api.POST("/api/v1/tokens", {
            params: { header: { "Idempotency-Key": key } },
            body: { name: name.trim(), expires_in_seconds: days * 86_400, actions: listed.length ? listed : null },
          }),
        );
        setSecret(made.token);
        await queries.invalidateQueries(ownTokens);
      }}
    >
      <Labelled id="token-name" label="Name" help="What uses it, such as the machine or the script.">
        <input
          id="token-name"
          className="field"
          required
          maxLength={100}
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
      </Labelled>
      <Labelled id="token-days" label="Valid for">
        <select
          id="token-days"
          className="field"
          value={days}
          onChange={(event) => setDays(Number(event.target.value))}
        >
          {DAYS.map((each) => (
            <option key={each} value={each}>
              {each === 1 ? "1 day" : `${each} days`}
            </option>
          ))}
        </select>
      </Labelled>
      <Labelled
        id="token-actions"
        label="Only these actions"
        help="Action keys such as instance.read, with spaces between. Empty: all that you may do."
      >
        <input
          id="token-actions"
          className="field font-mono"
          value={actions}
          onChange={(event) => setActions(event.target.value)}
        />
      </Labelled>
    </ActionDialog>
  );
}
