/** What may be launched: artifacts and versions with their promotion, and who vouches for them. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { answer, type Schemas } from "../client";
import { apiAt, HERE, keyOf, type Place } from "../place";
import { LIVE_MS, PAGE_SIZE, WHOLE } from "./timing";

export type Artifact = Schemas["ArtifactView"];
export type Version = Schemas["VersionView"];
export type Promotion = Schemas["PromotionState"];
export type Trigger = Schemas["PromotionTrigger"];

/** One column of the board: the artifacts in one state of their promotion. */
export const artifacts = (
  place: Place | undefined,
  promotion: Promotion | undefined,
  filter: { kind?: Schemas["ArtifactKind"]; cursor?: string },
) =>
  queryOptions({
    queryKey: ["artifacts", place && keyOf(place), promotion, filter],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/artifacts", {
          params: { path: HERE, query: { ...filter, promotion, limit: PAGE_SIZE } },
        }),
      ),
    enabled: place !== undefined,
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
  });

const one = (id: string) => ({ ...HERE, artifact_id: id });

export const artifact = (place: Place | undefined, id: string) =>
  queryOptions({
    queryKey: ["artifact", id, place && keyOf(place)],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}", { params: { path: one(id) } }),
      ),
    enabled: place !== undefined,
    refetchInterval: LIVE_MS,
    retry: false,
  });

export const evidence = (place: Place, id: string) =>
  queryOptions({
    queryKey: ["artifact", id, "evidence"],
    queryFn: () =>
      answer(
        apiAt(place).GET("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/evidence", {
          params: { path: one(id) },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

export const checks = (place: Place, id: string) =>
  queryOptions({
    queryKey: ["artifact", id, "checks"],
    queryFn: () =>
      answer(
        apiAt(place).GET("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/checks", {
          params: { path: one(id), query: { limit: PAGE_SIZE } },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

export const history = (place: Place, id: string) =>
  queryOptions({
    queryKey: ["artifact", id, "history"],
    queryFn: () =>
      answer(
        apiAt(place).GET("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/history", {
          params: { path: one(id) },
        }),
      ),
    refetchInterval: LIVE_MS,
  });

export const impact = (place: Place, id: string) =>
  queryOptions({
    queryKey: ["artifact", id, "impact"],
    queryFn: () =>
      answer(
        apiAt(place).GET("/api/v1/tenants/{tenant_id}/artifacts/{artifact_id}/impact", {
          params: { path: one(id) },
        }),
      ),
  });

export const apps = (place: Place | undefined) =>
  queryOptions({
    queryKey: ["apps", place && keyOf(place)],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/apps", {
          params: { path: HERE, query: { limit: WHOLE } },
        }),
      ),
    enabled: place !== undefined && place.scope !== "project",
  });

export const versions = (place: Place | undefined, appId: string | undefined) =>
  queryOptions({
    queryKey: ["versions", place && keyOf(place), appId],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/apps/{app_id}/versions", {
          params: { path: { ...HERE, app_id: appId ?? "" }, query: { limit: WHOLE } },
        }),
      ),
    enabled: place !== undefined && appId !== undefined,
    refetchInterval: LIVE_MS,
  });

export const sources = (place: Place | undefined, cursor: string | undefined) =>
  queryOptions({
    queryKey: ["artifact-sources", place && keyOf(place), cursor],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/artifact-sources", {
          params: { path: HERE, query: { cursor, limit: PAGE_SIZE } },
        }),
      ),
    enabled: place !== undefined,
  });

export const signerKeys = (place: Place | undefined, cursor: string | undefined) =>
  queryOptions({
    queryKey: ["signer-keys", place && keyOf(place), cursor],
    queryFn: () =>
      answer(
        apiAt(place as Place).GET("/api/v1/tenants/{tenant_id}/signer-keys", {
          params: { path: HERE, query: { cursor, limit: PAGE_SIZE } },
        }),
      ),
    enabled: place !== undefined,
  });

export const signerKeyImpact = (place: Place, id: string) =>
  queryOptions({
    queryKey: ["signer-key-impact", id],
    queryFn: () =>
      answer(
        apiAt(place).GET("/api/v1/tenants/{tenant_id}/signer-keys/{signer_key_id}/impact", {
          params: { path: { ...HERE, signer_key_id: id } },
        }),
      ),
  });
