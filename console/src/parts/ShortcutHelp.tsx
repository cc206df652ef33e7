/** The keys, opened with `?`. */
import { useEffect, useRef } from "react";
import type { PageEntry } from "../navigation";

const EVERYWHERE: [string, string][] = [
  ["/", "find a page, a name or an id"],
  ["j k", "next and previous row of a list"],
  ["Enter", "open the row"],
  ["Esc", "close a dialog"],
  ["?", "these keys"],
];

export function ShortcutHelp({ pages, close }: { pages: PageEntry[]; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const rows = [...EVERYWHERE, ...pages.map((each): [string, string] => [`g ${each.letter}`, each.label])];
  return (
    <dialog
      ref={dialog}
      onClose={close}
      aria-label="Keys"
      className="w-[min(28rem,calc(100vw-2rem))] rounded-lg border border-line bg-panel p-5 text-ink shadow-2xl"
    >
      <h2 className="mb-3 text-base">Keys</h2>
      <dl className="grid grid-cols-[auto_1fr] items-center gap-x-4 gap-y-1.5">
        {rows.map(([keys, meaning]) => (
          <div key={keys} className="contents">
            <dt className="flex gap-1">
              {keys.split(" ").map((key) => (
                <kbd key={key} className="rounded border border-line bg-sunken px-1.5 py-0.5 font-mono text-xs">
                  {key}
                </kbd>
              ))}
            </dt>
            <dd className="text-muted">{meaning}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog" className="mt-4 flex justify-end">
        <button type="submit" className="link">
          Close
        </button>
      </form>
    </dialog>
  );
}
