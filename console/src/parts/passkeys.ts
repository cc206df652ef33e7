/** What the browser does for passkeys. Authenticators speak bytes, the API base64url. */
import { answer, api } from "../api/client";

/** Makes a passkey for the signed-in person and stores it under this name. */
export async function addPasskey(name: string): Promise<void> {
  const { public_key } = await answer(api.POST("/api/v1/whoami/passkeys/options"));
  const made = await navigator.credentials.create({
    publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(public_key as never),
  });
  const credential = made as PublicKeyCredential;
  const response = credential.response as AuthenticatorAttestationResponse;
  await answer(
    api.POST("/api/v1/whoami/passkeys", {
      body: {
        name,
        credential_id: encode(credential.rawId),
        client_data: encode(response.clientDataJSON),
        attestation: encode(response.attestationObject),
        transports: response.getTransports(),
      },
    }),
  );
}

/** Signs in with a passkey that the browser offers for this address. */
export async function signInWithPasskey(): Promise<void> {
  const { public_key } = await answer(api.POST("/api/v1/sign-in/passkey"));
  const found = await navigator.credentials.get({
    publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(public_key as never),
  });
  const credential = found as PublicKeyCredential;
  const response = credential.response as AuthenticatorAssertionResponse;
  await answer(
    api.POST("/api/v1/browser-session/passkey", {
      body: {
        credential_id: encode(credential.rawId),
        client_data: encode(response.clientDataJSON),
        authenticator_data: encode(response.authenticatorData),
        signature: encode(response.signature),
        user_handle: response.userHandle ? encode(response.userHandle) : undefined,
      },
    }),
  );
}

/** Why this page can use no passkey; undefined if it can. */
export function passkeyHindrance(): string | undefined {
  if (!("credentials" in navigator) || !("PublicKeyCredential" in window)) return "This browser has no passkeys.";
  if (/^[\d.]+$|^\[/.test(location.hostname))
    return `Passkeys belong to a name, not to an IP address: open the console at ${location.origin.replace(location.hostname, "localhost")}.`;
  return undefined;
}

/** What the browser says when a person cancels, or has no passkey here. */
export function isCancelled(error: unknown): boolean {
  return error instanceof DOMException && (error.name === "NotAllowedError" || error.name === "AbortError");
}

function encode(data: ArrayBuffer): string {
  const text = btoa(String.fromCharCode(...new Uint8Array(data)));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
