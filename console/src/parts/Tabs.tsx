/** The parts of a page. Which one is open stands in the URL; the page owns it. */
interface TabsProps<T extends string> {
  label: string;
  tabs: readonly T[];
  current: T;
  go: (tab: T) => void;
}

export function Tabs<T extends string>({ label, tabs, current, go }: TabsProps<T>) {
  return (
    <nav aria-label={label} className="mb-5 flex gap-1 overflow-x-auto border-b border-line">
      {tabs.map((each) => (
        <button
          key={each}
          type="button"
          aria-current={each === current ? "page" : undefined}
          onClick={() => go(each)}
          className={`-mb-px border-b-2 px-3 py-2 font-medium whitespace-nowrap first-letter:uppercase focus-visible:-outline-offset-2 ${
            each === current ? "border-accent text-accent" : "border-transparent text-muted hover:text-ink"
          }`}
        >
          {each}
        </button>
      ))}
    </nav>
  );
}
