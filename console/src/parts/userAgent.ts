/** The name of a program, read from what it calls itself. It proves nothing; the whole text is in the title. */
const BROWSERS: [RegExp, string][] = [
  [/Edg\/(\d+)/, "Edge"],
  [/OPR\/(\d+)/, "Opera"],
  [/(?:Headless)?Chrome\/(\d+)/, "Chrome"],
  [/Firefox\/(\d+)/, "Firefox"],
  [/Version\/(\d+).*Safari/, "Safari"],
];
const SYSTEMS: [RegExp, string][] = [
  [/iPhone|iPad/, "iOS"],
  [/Android/, "Android"],
  [/Mac OS X/, "macOS"],
  [/Windows/, "Windows"],
  [/Linux/, "Linux"],
];

export function browserName(userAgent: string | null | undefined): string {
  if (!userAgent) return "Unknown program";
  for (const [pattern, name] of BROWSERS) {
    const found = userAgent.match(pattern);
    if (!found) continue;
    const system = SYSTEMS.find(([each]) => each.test(userAgent))?.[1];
    return `${name} ${found[1]}${system ? ` on ${system}` : ""}`;
  }
  return userAgent.split(" ")[0]?.slice(0, 40) || "Unknown program";
}
