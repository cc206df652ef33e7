/** The members of a workload: where they run, as a grid and as a table, and what can be done with them. */
import { useQuery } from "@tanstack/react-query";
import Plus from "lucide-react/icons/plus";
import { useState } from "react";
import type { Instance, Member } from "../../api/client";
import { members as membersQuery } from "../../api/queries/runtime";
import { Switch } from "../../parts/Filters";
import { Button, Empty, Panel, ProblemBox, Skeleton } from "../../parts/ui";
import { AddDialog, MEMBER_ACTION, MemberDialog, type MemberVerb } from "./MemberDialogs";
import { MemberGrid } from "./MemberGrid";
import { MemberTable } from "./MemberTable";
import { missing } from "./verbs";

type Open = "add" | { verb: MemberVerb; members: Member[] } | null;

export function Members({ instance, done }: { instance: Instance; done: () => void }) {
  const listed = useQuery(membersQuery(instance));
  const [open, setOpen] = useState<Open>(null);
  const [gone, setGone] = useState<true>();
  const [lit, setLit] = useState<string>();
  const [chosen, setChosen] = useState<string[]>([]);
  const all = listed.data?.items ?? [];
  const shown = all.filter((each) => gone || instance.status === "stopped" || each.status !== "removed");
  const removed = all.filter((each) => each.status === "removed").length;
  const picked = shown.filter((each) => chosen.includes(each.id) && each.status !== "removed");
  const close = () => setOpen(null);
  return (
    <Panel
      title="Members"
      aside={
        <div className="flex flex-wrap items-center gap-3">
          {removed > 0 && instance.status !== "stopped" && (
            <Switch label={`Show ${removed} removed`} value={gone} onChange={setGone} />
          )}
          {picked.length > 0 && (
            <Button
              onClick={() => setOpen({ verb: "drain", members: picked })}
              disabledReason={reasonOf(picked, "drain")}
            >
              Drain {picked.length} chosen
            </Button>
          )}
          <Button onClick={() => setOpen("add")} disabledReason={missing(instance, "add", "member.add")}>
            <Plus size={14} aria-hidden /> Add
          </Button>
        </div>
      }
    >
      {listed.error ? (
        <ProblemBox error={listed.error} retry={() => listed.refetch()} />
      ) : !listed.data ? (
        <Skeleton />
      ) : shown.length === 0 ? (
        <Empty title="It has no members" command={`mooring instances members list ${instance.name}`} />
      ) : (
        <>
          <MemberGrid instance={instance} members={shown} lit={lit} light={setLit} />
          <MemberTable
            instance={instance}
            members={shown}
            open={(verb, members) => setOpen({ verb, members })}
            lit={lit}
            light={setLit}
            chosen={chosen}
            choose={setChosen}
          />
          {listed.data.next_cursor && (
            <p className="px-4 py-2 text-xs text-muted">
              There are more; <code>mooring instances members list {instance.name}</code> has all of them.
            </p>
          )}
        </>
      )}
      {open === "add" && <AddDialog instance={instance} close={close} done={done} />}
      {open !== null && open !== "add" && (
        <MemberDialog
          instance={instance}
          members={open.members}
          verb={open.verb}
          close={close}
          done={() => {
            setChosen([]);
            done();
          }}
        />
      )}
    </Panel>
  );
}

/** Why the verb cannot be used with all of them, named by the first with which it cannot. */
function reasonOf(members: Member[], verb: MemberVerb): string | undefined {
  for (const each of members) {
    const reason = missing(each, verb, MEMBER_ACTION[verb]);
    if (reason) return `${each.name}: ${reason}`;
  }
  return undefined;
}
