/** The timeline as a story: one chapter for each request, the newest first. */
import { useMemo } from "react";
import type { TimelineEntry } from "../../api/client";
import { Clock, duration } from "../../parts/time";
import { type Chapter, chapters, toneOf } from "./chapters";

export function Story({ entries }: { entries: TimelineEntry[] }) {
  const story = useMemo(() => chapters(entries), [entries]);
  return (
    <ol className="p-4" aria-label="Story, the newest first">
      {story.map((each) => (
        <ChapterItem key={each.key} chapter={each} />
      ))}
    </ol>
  );
}

const DOT = { good: "bg-good", busy: "bg-busy", warn: "bg-warn", bad: "bg-bad", quiet: "bg-line" };

function ChapterItem({ chapter }: { chapter: Chapter }) {
  const total = new Date(chapter.lines.at(-1)?.at ?? chapter.at).getTime() - new Date(chapter.at).getTime();
  const begun = new Date(chapter.at).getTime();
  return (
    <li className="border-l-2 border-line pb-6 pl-5 last:pb-1">
      <div className="relative mb-2 flex flex-wrap items-baseline gap-x-3">
        <span
          className="absolute top-1.5 -left-[1.65rem] size-3 rounded-full border-2 border-panel bg-accent"
          aria-hidden
        />
        <h3 className="font-semibold">{chapter.title}</h3>
        <span className="text-xs text-muted">
          <Clock at={chapter.at} /> · {duration(total)} · {chapter.actor}
        </span>
      </div>
      <ol className="space-y-1">
        {chapter.lines.map((each) => (
          <li
            key={each.id}
            className="grid grid-cols-[0.5rem_4rem_minmax(0,1fr)] items-baseline gap-x-2 max-sm:grid-cols-[0.5rem_3.2rem_minmax(0,1fr)]"
          >
            <span aria-hidden className={`mt-1.5 size-2 self-start rounded-full ${DOT[toneOf(each)]}`} />
            <span className="font-mono text-xs text-muted tabular-nums" title={each.at}>
              +{duration(new Date(each.at).getTime() - begun)}
            </span>
            <span className="break-words">{each.text}</span>
          </li>
        ))}
      </ol>
    </li>
  );
}
