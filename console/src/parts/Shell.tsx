/** The frame around every page: navigation, who is signed in, theme, the palette, and what screen readers hear. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import LogOut from "lucide-react/icons/log-out";
import Menu from "lucide-react/icons/menu";
import Monitor from "lucide-react/icons/monitor";
import Moon from "lucide-react/icons/moon";
import Search from "lucide-react/icons/search";
import Sun from "lucide-react/icons/sun";
import Close from "lucide-react/icons/x";
import { lazy, Suspense, useCallback, useEffect, useMemo, useState } from "react";
import { answer, api } from "../api/client";
import { whoAmI } from "../api/queries/identity";
import { groupsFor, type PageGroup } from "../navigation";
import { applyTheme, storedTheme, type Theme } from "../theme";
import { announce } from "./announcer";
import { Mark } from "./Mark";
import { Palette } from "./Palette";
import { ShortcutHelp } from "./ShortcutHelp";
import { useShortcuts } from "./shortcuts";
import { ProblemBox, Skeleton } from "./ui";

const THEMES: { theme: Theme; label: string; icon: typeof Sun }[] = [
  { theme: "system", label: "Theme of the system", icon: Monitor },
  { theme: "light", label: "Light theme", icon: Sun },
  { theme: "dark", label: "Dark theme", icon: Moon },
];

const BreakGlassBanner = lazy(async () => ({ default: (await import("./BreakGlassBanner")).BreakGlassBanner }));

export function Shell() {
  const me = useQuery(whoAmI);
  const [dialog, setDialog] = useState<"palette" | "keys" | null>(null);
  const [isMenuOpen, setMenuOpen] = useState(false);
  const path = useRouterState({ select: (state) => state.location.pathname });
  const groups = useMemo(() => groupsFor(me.data), [me.data]);
  const pages = useMemo(() => groups.flatMap((group) => group.pages), [groups]);
  const close = useCallback(() => setDialog(null), []);
  useShortcuts({
    pages,
    find: useCallback(() => setDialog("palette"), []),
    help: useCallback(() => setDialog("keys"), []),
  });

  useEffect(() => {
    setMenuOpen(false);
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
      <aside className="sticky top-0 z-10 flex flex-wrap items-center gap-1 border-b border-line bg-panel px-3 py-2 max-md:max-h-dvh max-md:overflow-y-auto md:h-dvh md:flex-col md:flex-nowrap md:items-stretch md:border-r md:border-b-0 md:p-3">
        <Link
          to="/"
          className="mr-auto flex items-center gap-2 rounded-md p-1 md:mr-2 md:mb-3"
          aria-label="Mooring, home"
        >
          <Mark />
          <span className="text-base font-semibold tracking-tight">Mooring</span>
        </Link>
        <button
          type="button"
          onClick={() => setDialog("palette")}
          className="flex items-center gap-2 rounded-md px-2.5 py-2 font-medium text-muted hover:bg-sunken hover:text-ink"
        >
          <Search size={17} aria-hidden />
          <span className="max-md:sr-only">Find</span>
          <kbd className="ml-auto hidden rounded border border-line px-1.5 font-mono text-xs md:inline">/</kbd>
        </button>
        <button
          type="button"
          aria-expanded={isMenuOpen}
          aria-controls="pages"
          aria-label="Menu"
          className="rounded-md p-2 text-muted hover:bg-sunken hover:text-ink md:hidden"
          onClick={() => setMenuOpen(!isMenuOpen)}
        >
          {isMenuOpen ? <Close size={18} aria-hidden /> : <Menu size={18} aria-hidden />}
        </button>
        <nav
          id="pages"
          aria-label="Pages"
          className={`w-full min-h-0 md:flex-1 md:overflow-y-auto ${isMenuOpen ? "" : "max-md:hidden"}`}
        >
          {groups.map((group) => (
            <Group key={group.label} group={group} />
          ))}
        </nav>
        <div className={`w-full ${isMenuOpen ? "" : "max-md:hidden"}`}>
          <Footer />
        </div>
      </aside>
      <main id="main" tabIndex={-1} className="mx-auto w-full max-w-7xl min-w-0 px-4 py-6 outline-none md:px-8">
        {me.isPending ? (
          <Skeleton />
        ) : me.error ? (
          <ProblemBox error={me.error} retry={() => me.refetch()} />
        ) : (
          <>
            {me.data.platform_actions.includes("break_glass.open") && (
              <Suspense>
                <BreakGlassBanner userId={me.data.id} />
              </Suspense>
            )}
            <Outlet />
          </>
        )}
      </main>
      {dialog === "palette" && <Palette pages={pages} close={close} />}
      {dialog === "keys" && <ShortcutHelp pages={pages} close={close} />}
      <div id="announcer" aria-live="polite" className="sr-only" />
    </div>
  );
}

function Group({ group }: { group: PageGroup }) {
  return (
    <section aria-label={group.label} className="mb-3">
      <p className="px-2.5 pb-1 text-xs text-muted" aria-hidden>
        {group.label}
      </p>
      <ul>
        {group.pages.map(({ to, label, icon: Icon }) => (
          <li key={to}>
            <Link
              to={to}
              activeOptions={{ exact: to === "/", includeSearch: false }}
              className="flex items-center gap-2 rounded-md px-2.5 py-1.5 font-medium text-muted hover:bg-sunken hover:text-ink aria-[current=page]:bg-accent-soft aria-[current=page]:text-accent"
            >
              <Icon size={17} aria-hidden />
              {label}
            </Link>
          </li>
        ))}
      </ul>
    </section>
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
    <div className="flex items-center gap-1 border-t border-line pt-2 md:pt-3">
      <span className="min-w-0 flex-1 truncate px-1 text-xs text-muted">{role}</span>
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
