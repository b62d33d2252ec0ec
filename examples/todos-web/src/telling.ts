/** Edits that did not happen are told: a full disk, or text that is too long. */

import type { Result } from "@lakesync/client";

const failures = new EventTarget();

export const sayFailure = (sentence: string): void =>
  void failures.dispatchEvent(new CustomEvent("failed", { detail: sentence }));

/** Tell the person if an edit fails; nothing was written then. */
export function tell(result: Promise<Result<unknown>>): void {
  void result.then((edited) => {
    if (!edited.ok) sayFailure(edited.error.message);
  });
}

/** Hear what failed; returns what ends that. */
export function onFailure(listener: (sentence: string) => void): () => void {
  const heard = (event: Event): void => listener((event as CustomEvent<string>).detail);
  failures.addEventListener("failed", heard);
  return () => failures.removeEventListener("failed", heard);
}
