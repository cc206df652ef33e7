/** The commands of the CLI that do the same as a form or a button. */
import type { Schemas } from "../api/client";

function quoted(word: string): string {
  return /^[A-Za-z0-9_./:=@-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function launchCommand(body: Schemas["CreateInstance"], project: string): string {
  const words = ["mooring", "launch", body.app, "--project", project, "--name", body.name];
  if (body.placement.sku) words.push("--sku", body.placement.sku);
  if (body.placement.gpu_count != null) words.push("--gpu-count", String(body.placement.gpu_count));
  for (const [key, count] of Object.entries(body.topology ?? {})) words.push("--topology", `${key}=${count}`);
  for (const [key, value] of Object.entries(body.config ?? {}))
    words.push("--config", `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return words.map(quoted).join(" ");
}
