/** How often what is shown is read again, and how much of it. */
export const LIVE_MS = 5_000;
export const REFERENCE_MS = 3_600_000;
export const PAGE_SIZE = 25;
/** The most that the server gives at once: for choices and short lists, never for lists that grow. */
export const WHOLE = 200;
