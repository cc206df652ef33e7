/**
 * The colours of a program's output. Only colours and weights are kept, each as a class of a fixed table; every other
 * control sequence is left out. What comes out is text, never markup.
 */

export interface Segment {
  text: string;
  className: string;
}

const COLOURS = ["text-muted", "text-bad", "text-good", "text-warn", "text-busy", "text-accent", "text-accent", ""];
const COLOUR_MAX = 200;
/** Sequences that end, those that a line cuts off, and single control characters other than tabs. */
const CONTROL =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /\x1b\[([0-9;:]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b\[[0-9;:?<=>]*$|\x1b[@-Z\\-_]?|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

export function segments(line: string): Segment[] {
  const found: Segment[] = [];
  let colour = "";
  let weight = "";
  let end = 0;
  const push = (text: string) => {
    if (text) found.push({ text, className: `${colour} ${weight}`.trim() });
  };
  for (const match of line.matchAll(CONTROL)) {
    if (found.length > COLOUR_MAX) break;
    push(line.slice(end, match.index));
    end = match.index + match[0].length;
    if (match[2] === "m")
      for (const code of (match[1] || "0").split(/[;:]/).map(Number)) {
        if (code === 0) [colour, weight] = ["", ""];
        else if (code === 1) weight = "font-semibold";
        else if (code === 2) weight = "opacity-70";
        else if (code === 22) weight = "";
        else if (code === 39) colour = "";
        else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = COLOURS[code % 10] ?? "";
        else if (code === 38 || code === 48) break; // of 256 or more colours: left out with its numbers
      }
  }
  push(line.slice(end).replace(CONTROL, ""));
  return found;
}
