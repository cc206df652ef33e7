/** The keys that work on every page: `/`, `?`, `g` and a letter, `j` into the list. */
import { useNavigate } from "@tanstack/react-router";
import { useEffect } from "react";
import type { PageEntry } from "../navigation";
import { enterList } from "./DataTable";

const LETTER_MS = 1_500;

interface Shortcuts {
  pages: PageEntry[];
  find: () => void;
  help: () => void;
}

export function useShortcuts({ pages, find, help }: Shortcuts): void {
  const navigate = useNavigate();
  useEffect(() => {
    let wentAt = 0;
    const onKey = (event: KeyboardEvent) => {
      if (document.querySelector("dialog[open]")) return;
      const isFind = event.key === "k" && (event.metaKey || event.ctrlKey);
      const target = event.target as HTMLElement;
      const isTyping = target.matches("input, textarea, select, [contenteditable]");
      if (!isFind && (isTyping || event.metaKey || event.ctrlKey || event.altKey)) return;
      const isSecond = event.timeStamp - wentAt < LETTER_MS;
      wentAt = 0;
      if (isFind || event.key === "/") find();
      else if (event.key === "?") help();
      else if (isSecond) {
        const page = pages.find((each) => each.letter === event.key);
        if (!page) return;
        void navigate({ to: page.to });
      } else if (event.key === "g") {
        wentAt = event.timeStamp;
        return;
      } else if (event.key === "j" && !target.closest("[data-list]")) enterList();
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [pages, find, help, navigate]);
}
