/** What every route stands in, and how the words of an address are read. */
import { createRootRoute, createRoute, Outlet } from "@tanstack/react-router";
import { Crashed, NotFound } from "../pages/NotFound";
import { Shell } from "../parts/Shell";

export const root = createRootRoute({ component: Outlet, notFoundComponent: NotFound, errorComponent: Crashed });
export const shell = createRoute({ getParentRoute: () => root, id: "shell", component: Shell });

export type Search = Record<string, unknown>;

export const text = (value: unknown): string | undefined =>
  typeof value === "string" && value !== "" ? value.slice(0, 300) : undefined;
export const oneOf = <T extends string>(value: unknown, words: readonly T[]): T | undefined =>
  words.find((each) => each === value);
