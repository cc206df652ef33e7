/** The words of the server: what a state, an event or an action key means. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { answer, api } from "../client";
import { REFERENCE_MS } from "./timing";

export const reference = queryOptions({
  queryKey: ["reference"],
  queryFn: () => answer(api.GET("/api/v1/reference")),
  staleTime: REFERENCE_MS,
});

/** The meaning of a state, an event type or an action key, in the words of the server's reference. */
export function useMeaning(): (kind: string, word: string) => string | undefined {
  const { data } = useQuery(reference);
  return (kind, word) => {
    if (kind === "event") return data?.event_types[word];
    if (kind === "action") return data?.actions.find((each) => each.key === word)?.meaning;
    return data?.lifecycles.find((each) => each.name === kind)?.states[word];
  };
}
