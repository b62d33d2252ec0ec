/** Small parts that several others show. */

import { useEffect, useRef, useState, type ReactNode } from "react";

import type { Person } from "./session.js";

export const Logo = (): ReactNode => (
  <span className="logo">
    <img src="./icon.svg" alt="" width="28" height="28" />
    Tandem
  </span>
);

export const Avatar = ({
  person,
  size = "small",
}: {
  person: Person;
  size?: "small" | "large";
}): ReactNode => (
  <span className={`avatar ${size}`} data-person={person.id} aria-hidden>
    {person.name.slice(0, 1)}
  </span>
);

/** The shape of the app, until there is something to show. */
export const Skeleton = (): ReactNode => (
  <div className="workspace skeleton" aria-busy aria-label="The lists are loading">
    <div className="sidebar">
      <Logo />
      <SkeletonRows count={3} />
    </div>
    <main className="main">
      <div className="bone title" />
      <SkeletonRows count={5} />
    </main>
  </div>
);

export const SkeletonRows = ({ count }: { count: number }): ReactNode => (
  <div className="bones" aria-hidden>
    {Array.from({ length: count }, (_, at) => (
      <div key={at} className="bone" style={{ inlineSize: `${[82, 64, 73, 55, 68][at % 5]!}%` }} />
    ))}
  </div>
);

/** A dialog that is open for as long as it is there; Escape and its backdrop close it. */
export function Dialog({
  title,
  close,
  children,
}: {
  title: string;
  close: () => void;
  children: ReactNode;
}): ReactNode {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    element?.showModal();
    return () => element?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      className="dialog"
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onClick={(event) => event.target === dialog.current && close()}
    >
      <div className="dialog-body">{children}</div>
    </dialog>
  );
}

/** What a field holds while it is edited; what others write meanwhile waits until it is left. */
export function useDraft(
  value: string,
  commit: (value: string) => void,
): {
  value: string;
  onChange: (event: { target: { value: string } }) => void;
  onFocus: () => void;
  onBlur: () => void;
  revert: () => void;
} {
  const [draft, setDraft] = useState<string | null>(null);
  return {
    value: draft ?? value,
    onChange: (event) => setDraft(event.target.value),
    onFocus: () => setDraft(value),
    onBlur: () => {
      setDraft(null);
      if (draft !== null && draft.trim() !== value) commit(draft.trim());
    },
    revert: () => setDraft(value),
  };
}
