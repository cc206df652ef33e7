/** The theme is set before anything is drawn; a script of its own, because the page's policy forbids inline ones. */
export type Theme = "light" | "dark" | "system";

const KEY = "mooring-theme";

export function storedTheme(): Theme {
  const found = localStorage.getItem(KEY);
  return found === "light" || found === "dark" ? found : "system";
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, theme);
  const isDark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.classList.toggle("dark", isDark);
}

export type Density = "comfortable" | "compact";

const DENSITY = "mooring-density";

export function storedDensity(): Density {
  return localStorage.getItem(DENSITY) === "compact" ? "compact" : "comfortable";
}

export function applyDensity(density: Density): void {
  if (density === "comfortable") localStorage.removeItem(DENSITY);
  else localStorage.setItem(DENSITY, density);
  document.documentElement.classList.toggle("compact", density === "compact");
}

applyDensity(storedDensity());
applyTheme(storedTheme());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme(storedTheme()));
