/** Elements of the terminal's page, made by hand: it is one screen, and needs no framework. Text is only ever text. */

export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  className = "",
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

export function button(label: string, act: () => void, look: "plain" | "primary" | "key" = "plain"): HTMLButtonElement {
  const looks = {
    plain: "border-line bg-panel text-ink hover:bg-sunken",
    primary: "border-transparent bg-accent text-accent-ink hover:brightness-110",
    key: "border-line bg-sunken font-mono text-ink",
  };
  const made = element(
    "button",
    `inline-flex min-h-8 items-center justify-center rounded-md border ${look === "key" ? "px-2" : "px-3"} py-1 text-sm font-medium whitespace-nowrap ${looks[look]}`,
    label,
  );
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

const TONES = {
  busy: "bg-busy-soft text-busy",
  good: "bg-good-soft text-good",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  quiet: "bg-sunken text-muted",
};
export type Tone = keyof typeof TONES;
const SIGNS: Record<Tone, string> = { busy: "◌", good: "●", warn: "▲", bad: "✕", quiet: "■" };

/** The state as sign and word; screen readers hear each change. */
export class StatusLine {
  readonly node = element("span");
  private readonly sign = element("span");
  private readonly word = element("span");

  constructor() {
    this.node.setAttribute("role", "status");
    this.sign.setAttribute("aria-hidden", "true");
    this.node.append(this.sign, this.word);
  }

  set(tone: Tone, text: string): void {
    this.node.className = `inline-flex items-center gap-1.5 rounded-full px-2.5 py-0.5 text-xs font-medium whitespace-nowrap ${TONES[tone]}`;
    this.sign.textContent = SIGNS[tone];
    this.word.textContent = text;
  }
}

/** A bar below the head that says what happened and offers what to do. */
export class Notice {
  readonly node = element("div", "hidden");

  show(tone: Tone, title: string, detail: string, ...actions: HTMLElement[]): void {
    const text = element("p", "min-w-0 flex-1 break-words", element("strong", "font-semibold", title));
    if (detail) text.append(` ${detail}`);
    this.node.className = `flex shrink-0 flex-wrap items-center gap-3 border-b border-line px-4 py-2 text-sm ${TONES[tone]}`;
    this.node.replaceChildren(text, ...actions);
  }

  hide(): void {
    this.node.className = "hidden";
    this.node.replaceChildren();
  }
}
