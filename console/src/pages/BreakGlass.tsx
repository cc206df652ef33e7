/** Who entered which tenant, when and why; and the way in, with a reason that the tenant reads too. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { answer, api, type Schemas } from "../api/client";
import type { Place } from "../api/place";
import { whoAmI } from "../api/queries/identity";
import { tenants } from "../api/queries/nodes";
import { breakGlass } from "../api/queries/records";
import { type Column, DataTable } from "../parts/DataTable";
import { ActionDialog } from "../parts/Dialog";
import { ReasonField, SelectField } from "../parts/Fields";
import { useLack } from "../parts/place";
import { ShownOnce } from "../parts/ShownOnce";
import { Status } from "../parts/Status";
import { Ago } from "../parts/time";
import { useTitle } from "../parts/title";
import { Button, CommandLine, Empty, PageHead, Skeleton } from "../parts/ui";

type Grant = Schemas["BreakGlassView"];

const ROLES = ["tenant_admin", "project_viewer", "project_member", "project_admin"] as const;
const PLATFORM: Place = { scope: "platform", id: "" };

export function BreakGlass() {
  useTitle("Break-glass");
  const me = useQuery(whoAmI).data;
  if (!me) return <Skeleton />;
  const isStaff = me.platform_actions.length > 0;
  return <Grants place={isStaff ? PLATFORM : { scope: "tenant", id: me.tenant_id ?? "" }} />;
}

function Grants({ place }: { place: Place }) {
  const { cursor } = useSearch({ from: "/shell/break-glass" });
  const navigate = useNavigate({ from: "/break-glass" });
  const page = useQuery(breakGlass(place, cursor));
  const known = useQuery({ ...tenants, enabled: place.scope === "platform" }).data?.items ?? [];
  const lack = useLack(place)("break_glass.open");
  const [isOpen, setOpen] = useState(false);
  const [made, setMade] = useState<Schemas["BreakGlassOpened"] | null>(null);
  return (
    <>
      <PageHead
        title="Break-glass"
        sub="Staff of the platform enters a tenant for a bounded time, with a reason that both can read."
      >
        {place.scope === "platform" && (
          <Button look="danger" onClick={() => setOpen(true)} disabledReason={lack}>
            Enter a tenant
          </Button>
        )}
      </PageHead>
      <DataTable
        label="Break-glass"
        columns={columns(new Map(known.map((each) => [each.id, each.slug])))}
        query={page}
        rowKey={(each) => each.id}
        pages={{ cursor, go: (next) => void navigate({ search: { cursor: next } }) }}
        empty={
          <Empty title="Nobody entered a tenant" command="mooring break-glass list">
            It stands here and in the audit trail of the tenant when somebody does.
          </Empty>
        }
      />
      {isOpen && <OpenDialog known={known} made={setMade} close={() => setOpen(false)} />}
      {made && (
        <ShownOnce title="The token for the tenant" label="Token" secret={made.token} close={() => setMade(null)}>
          <p className="text-muted">
            It ends <Ago at={made.expires_at} />. Everything done with it is marked in the audit trails of the platform
            and of the tenant.
          </p>
          <CommandLine command="MOORING_TOKEN=… mooring instances list" />
        </ShownOnce>
      )}
    </>
  );
}

function isActive(grant: Grant): boolean {
  return Date.parse(grant.expires_at) > Date.now();
}

function columns(names: Map<string, string>): Column<Grant>[] {
  return [
    { head: "Tenant", narrow: "line", cell: (each) => names.get(each.tenant_id) ?? each.tenant_id },
    { head: "State", cell: (each) => <Status kind="break_glass" value={isActive(each) ? "active" : "ended"} /> },
    { head: "As", cell: (each) => each.role.replaceAll("_", " ") },
    { head: "Who", narrow: "line", cell: (each) => <span className="font-mono text-xs">{each.user_id}</span> },
    { head: "Reason", narrow: "line", cell: (each) => each.reason },
    {
      head: "Opened",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.created_at} />
        </span>
      ),
    },
    {
      head: "Ends",
      cell: (each) => (
        <span className="text-muted">
          <Ago at={each.expires_at} />
        </span>
      ),
    },
  ];
}

interface OpenDialogProps {
  known: Schemas["TenantView"][];
  made: (grant: Schemas["BreakGlassOpened"]) => void;
  close: () => void;
}

function OpenDialog({ known, made, close }: OpenDialogProps) {
  const queries = useQueryClient();
  const [tenant, setTenant] = useState("");
  const [role, setRole] = useState<(typeof ROLES)[number]>("tenant_admin");
  const [reason, setReason] = useState("");
  const slug = known.find((each) => each.id === tenant)?.slug ?? "TENANT";
  return (
    <ActionDialog
      title="Enter a tenant?"
      confirm="Enter it"
      danger
      command={`mooring break-glass open --tenant ${slug} --role ${role} --reason '${reason}'`}
      close={close}
      act={async (key) => {
        const opened = await answer(
          api.POST("/api/v1/platform/break-glass", {
            params: { header: { "Idempotency-Key": key } },
            body: { tenant_id: tenant, reason, role },
          }),
        );
        made(opened);
        await queries.invalidateQueries({ queryKey: ["break-glass"] });
      }}
    >
      <p>The tenant sees at once who entered, as what, and why.</p>
      <SelectField
        label="Tenant"
        value={tenant}
        onChange={setTenant}
        required
        empty="Choose…"
        words={known.map((each) => ({ value: each.id, label: each.slug }))}
      />
      <SelectField
        label="As"
        value={role}
        onChange={(next) => setRole(ROLES.find((each) => each === next) ?? "tenant_admin")}
        words={ROLES.map((each) => ({ value: each, label: each.replaceAll("_", " ") }))}
      />
      <ReasonField value={reason} onChange={setReason} />
    </ActionDialog>
  );
}
