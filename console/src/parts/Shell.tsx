/** The frame around every page: navigation, who is signed in, theme, the palette, and what screen readers hear. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import Boxes from "lucide-react/icons/boxes";
import House from "lucide-react/icons/house";
import LayoutGrid from "lucide-react/icons/layout-grid";
import LogOut from "lucide-react/icons/log-out";
import Monitor from "lucide-react/icons/monitor";
import Moon from "lucide-react/icons/moon";
import Search from "lucide-react/icons/search";
import Sun from "lucide-react/icons/sun";
import { useEffect, useState } from "react";
import { answer, api } from "../api/client";
import { whoAmI } from "../api/queries";
import { applyTheme, storedTheme, type Theme } from "../theme";
import { announce } from "./announcer";
import { Mark } from "./Mark";
import { Palette } from "./Palette";
import { ProblemBox, Skeleton } from "./ui";

export const PAGES = [
  { to: "/", label: "Home", icon: House },
  { to: "/catalog", label: "Catalog", icon: LayoutGrid },
  { to: "/workloads", label: "Workloads", icon: Boxes },
] as const;

const THEMES: { theme: Theme; label: string; icon: typeof Sun }[] = [
  { theme: "system", label: "Theme of the system", icon: Monitor },
  { theme: "light", label: "Light theme", icon: Sun },
  { theme: "dark", label: "Dark theme", icon: Moon },
];

export function Shell() {
  const me = useQuery(whoAmI);
  const [palette, setPalette] = useState(false);
  const path = useRouterState({ select: (state) => state.location.pathname });

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const isTyping = target.matches("input, textarea, select, [contenteditable]");
      const isShortcut = (event.key === "/" && !isTyping) || (event.key === "k" && (event.metaKey || event.ctrlKey));
      if (!isShortcut || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      setPalette(true);
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);

  useEffect(() => {
    const timer = window.setTimeout(() => announce(document.title), 300);
    return () => window.clearTimeout(timer);
  }, [path]);

  return (
    <div className="min-h-dvh md:grid md:grid-cols-[13.5rem_minmax(0,1fr)]">
      <a
        href="#main"
        className="sr-only rounded-md bg-accent px-3 py-2 text-accent-ink focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:z-20"
      >
        Skip to the content
      </a>
      <aside className="sticky top-0 z-10 flex items-center gap-1 border-b border-line bg-panel px-3 py-2 md:h-dvh md:flex-col md:items-stretch md:border-r md:border-b-0 md:p-3">
        <Link to="/" className="mr-2 flex items-center gap-2 rounded-md p-1 md:mb-3" aria-label="Mooring, home">
          <Mark />
          <span className="hidden text-base font-semibold tracking-tight md:inline">Mooring</span>
        </Link>
        <nav aria-label="Pages" className="flex flex-1 gap-1 md:flex-col">
          {PAGES.map(({ to, label, icon: Icon }) => (
            <Link
              key={to}
              to={to}
              activeOptions={{ exact: to === "/" }}
              className="flex items-center gap-2 rounded-md px-2.5 py-2 font-medium text-muted hover:bg-sunken hover:text-ink aria-[current=page]:bg-accent-soft aria-[current=page]:text-accent"
            >
              <Icon size={17} aria-hidden />
              <span className="max-sm:sr-only">{label}</span>
            </Link>
          ))}
          <button
            type="button"
            onClick={() => setPalette(true)}
            className="flex items-center gap-2 rounded-md px-2.5 py-2 font-medium text-muted hover:bg-sunken hover:text-ink"
          >
            <Search size={17} aria-hidden />
            <span className="max-sm:sr-only">Find</span>
            <kbd className="ml-auto hidden rounded border border-line px-1.5 font-mono text-xs md:inline">/</kbd>
          </button>
        </nav>
        <Footer />
      </aside>
      <main id="main" tabIndex={-1} className="mx-auto w-full max-w-6xl min-w-0 px-4 py-6 outline-none md:px-8">
        {me.isPending ? (
          <Skeleton />
        ) : me.error ? (
          <ProblemBox error={me.error} retry={() => me.refetch()} />
        ) : (
          <Outlet />
        )}
      </main>
      {palette && <Palette close={() => setPalette(false)} />}
      <div id="announcer" aria-live="polite" className="sr-only" />
    </div>
  );
}

function Footer() {
  const navigate = useNavigate();
  const queries = useQueryClient();
  const me = useQuery(whoAmI).data;
  const [theme, setTheme] = useState(storedTheme);
  const signOut = async () => {
    await answer(api.DELETE("/api/v1/browser-session"));
    queries.clear();
    await navigate({ to: "/sign-in", search: {} });
  };
  const next = THEMES[(THEMES.findIndex((each) => each.theme === theme) + 1) % THEMES.length] ?? THEMES[0];
  const shown = THEMES.find((each) => each.theme === theme);
  const Icon = shown?.icon ?? Monitor;
  const role = me?.roles[0]?.role.replaceAll("_", " ");
  return (
    <div className="flex items-center gap-1 md:border-t md:border-line md:pt-3">
      <span className="hidden min-w-0 flex-1 truncate px-1 text-xs text-muted md:block">{role}</span>
      <button
        type="button"
        title={shown?.label}
        aria-label={`${shown?.label}; switch`}
        className="rounded-md p-2 text-muted hover:bg-sunken hover:text-ink"
        onClick={() => {
          if (!next) return;
          applyTheme(next.theme);
          setTheme(next.theme);
          announce(next.label);
        }}
      >
        <Icon size={16} aria-hidden />
      </button>
      <button
        type="button"
        title="Sign out"
        aria-label="Sign out"
        className="rounded-md p-2 text-muted hover:bg-sunken hover:text-ink"
        onClick={() => void signOut()}
      >
        <LogOut size={16} aria-hidden />
      </button>
    </div>
  );
}
