/** Where one is in the app: in the address, so that going back works, and a reload changes nothing. */

import { useCallback, useMemo, useSyncExternalStore } from "react";

export interface Place {
  readonly person: string;
  readonly list: string;
  readonly todo: string;
}

const subscribe = (listener: () => void): (() => void) => {
  addEventListener("hashchange", listener);
  return () => removeEventListener("hashchange", listener);
};

const addressOf = ({ person, list, todo }: Place): string =>
  `#${[person, list, todo].map(encodeURIComponent).join("/").replace(/\/+$/, "")}`;

/** The place, and how one gets to another: what is not given stays, but a todo. */
export function usePlace(): readonly [Place, (to: Partial<Place>, isNew?: boolean) => void] {
  const hash = useSyncExternalStore(subscribe, () => location.hash);
  const place = useMemo((): Place => {
    const [person = "", list = "", todo = ""] = hash.slice(1).split("/").map(decodeURIComponent);
    return { person, list, todo };
  }, [hash]);
  const go = useCallback(
    (to: Partial<Place>, isNew = true) => {
      const address = addressOf({ ...place, todo: "", ...to });
      if (isNew) location.hash = address;
      else {
        history.replaceState(null, "", address);
        dispatchEvent(new HashChangeEvent("hashchange"));
      }
    },
    [place],
  );
  return [place, go];
}
