/** The members as a table: the twin of the grid, with every state, hold and button. */
import { Link } from "@tanstack/react-router";
import SquareTerminal from "lucide-react/icons/square-terminal";
import type { Instance, Member } from "../../api/client";
import { moveInList } from "../../parts/DataTable";
import { Status } from "../../parts/Status";
import { Ago } from "../../parts/time";
import { Button } from "../../parts/ui";
import { MEMBER_ACTION, type MemberVerb } from "./MemberDialogs";
import { missing } from "./verbs";

interface MemberTableProps {
  instance: Instance;
  members: Member[];
  open: (verb: MemberVerb, members: Member[]) => void;
  lit: string | undefined;
  light: (id: string | undefined) => void;
  chosen: string[];
  choose: (ids: string[]) => void;
}

const HEADS = ["", "Member", "State", "Health", "Node", "Actions"];

export function MemberTable({ instance, members, open, lit, light, chosen, choose }: MemberTableProps) {
  const toggle = (id: string) => choose(chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id]);
  return (
    <div className="overflow-x-auto border-t border-line">
      <table className="w-full" data-list onKeyDown={moveInList}>
        <caption className="sr-only">Members</caption>
        <thead className="border-b border-line max-md:sr-only">
          <tr>
            {HEADS.map((each) => (
              <th key={each} scope="col" className="px-4 py-2 text-left text-xs font-medium text-muted">
                {each || <span className="sr-only">Choose</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="divide-y divide-line">
          {members.map((each) => (
            <MemberRow
              key={each.id}
              member={each}
              instance={instance}
              isLit={lit === each.id}
              light={light}
              isChosen={chosen.includes(each.id)}
              toggle={() => toggle(each.id)}
              open={(verb) => open(verb, [each])}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface MemberRowProps {
  member: Member;
  instance: Instance;
  isLit: boolean;
  light: (id: string | undefined) => void;
  isChosen: boolean;
  toggle: () => void;
  open: (verb: MemberVerb) => void;
}

function MemberRow({ member, instance, isLit, light, isChosen, toggle, open }: MemberRowProps) {
  const cell = "md:px-4 md:py-2.5 align-top";
  return (
    <tr
      id={`row-${member.id}`}
      onMouseEnter={() => light(member.id)}
      onMouseLeave={() => light(undefined)}
      onFocus={() => light(member.id)}
      onBlur={() => light(undefined)}
      className={`max-md:flex max-md:flex-wrap max-md:items-center max-md:gap-x-3 max-md:gap-y-2 max-md:px-4 max-md:py-3 ${isLit ? "bg-accent-soft" : ""}`}
    >
      <td className={cell}>
        {member.status !== "removed" && (
          <input
            type="checkbox"
            aria-label={`Choose ${member.name}`}
            className="size-4 accent-accent"
            checked={isChosen}
            onChange={toggle}
          />
        )}
      </td>
      <td className={`${cell} max-md:basis-[calc(100%-2.5rem)]`}>
        <span className="font-medium">{member.name}</span>
        <span className="block text-xs text-muted">
          {member.component_key}, {member.version}
        </span>
        {(member.blocker ?? member.failure_detail) && (
          <span className="block max-w-sm text-xs break-words text-warn">
            {member.blocker ?? member.failure_detail}
          </span>
        )}
        {member.holds.map((each) => (
          <span key={`${each.owner} ${each.since}`} className="block max-w-sm text-xs break-words text-warn">
            Held by {each.owner} <Ago at={each.since} />
            {each.reason && `: ${each.reason}`}
          </span>
        ))}
      </td>
      <td className={cell}>
        <Status kind="member" value={member.status} />
      </td>
      <td className={cell}>{member.status !== "removed" && <Status kind="health" value={member.health} />}</td>
      <td className={`${cell} font-mono text-xs text-muted`} title={member.node_id ?? undefined}>
        {member.node_id ? `…${member.node_id.slice(-8)}` : "–"}
        {member.node_reachable === false && <span className="block text-warn">does not answer</span>}
      </td>
      <td className={cell}>
        {member.status === "removed" ? (
          <Link to="/workloads/$id" params={{ id: instance.id }} search={{ tab: "receipts" }} className="link text-xs">
            Receipt
          </Link>
        ) : (
          <div className="flex flex-wrap gap-2">
            <TerminalLink instance={instance} member={member} />
            <Verb verb={member.allowed_verbs.includes("resume") ? "resume" : "drain"} member={member} open={open} />
            <Verb verb="replace" member={member} open={open} />
            <Verb verb="remove" member={member} open={open} />
          </div>
        )}
      </td>
    </tr>
  );
}

/** A shell beside the member's programs, in a window of its own. */
function TerminalLink({ instance, member }: { instance: Instance; member: Member }) {
  const reason = missing(member, "exec", "instance.exec");
  const icon = <SquareTerminal size={14} aria-hidden />;
  if (reason) {
    return <Button disabledReason={reason}>{icon} Terminal</Button>;
  }
  return (
    <a
      className="inline-flex min-h-8 items-center justify-center gap-1.5 rounded-md border border-line bg-panel px-3 py-1 text-sm font-medium whitespace-nowrap text-ink hover:bg-sunken"
      href={`${import.meta.env.BASE_URL}terminal/${instance.project_id}/${instance.id}?member=${member.id}`}
      target="_blank"
      rel="noopener"
      title={`A shell of ${member.name}, in a new tab`}
    >
      {icon} Terminal
    </a>
  );
}

function Verb({ verb, member, open }: { verb: MemberVerb; member: Member; open: (verb: MemberVerb) => void }) {
  return (
    <Button
      look={verb === "remove" ? "danger" : "plain"}
      onClick={() => open(verb)}
      disabledReason={missing(member, verb, MEMBER_ACTION[verb])}
    >
      {verb.slice(0, 1).toUpperCase() + verb.slice(1)}
    </Button>
  );
}
