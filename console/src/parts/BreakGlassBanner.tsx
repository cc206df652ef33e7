/** Says on every page that one's own break-glass is open: where, as what, and until when. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import KeyRound from "lucide-react/icons/key-round";
import { breakGlass } from "../api/queries/records";
import { Ago, useNow } from "./time";

export function BreakGlassBanner({ userId }: { userId: string }) {
  const now = useNow();
  const page = useQuery(breakGlass({ scope: "platform", id: "" }, undefined));
  const active = (page.data?.items ?? []).filter(
    (each) => each.user_id === userId && Date.parse(each.expires_at) > now,
  );
  return active.map((each) => (
    <p
      key={each.id}
      role="status"
      className="mb-4 flex flex-wrap items-center gap-2 rounded-md bg-bad-soft px-4 py-3 text-bad"
    >
      <KeyRound size={16} aria-hidden /> Break-glass is open: {each.role.replaceAll("_", " ")} in{" "}
      <span className="font-mono text-xs">{each.tenant_id}</span>; it ends <Ago at={each.expires_at} />.
      <Link to="/break-glass" className="underline">
        See it
      </Link>
    </p>
  ));
}
