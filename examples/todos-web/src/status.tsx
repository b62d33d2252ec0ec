/** How the lists stand with the gateway, in a word, and what one can do about it. */

import type { Status } from "@lakesync/client";
import { useSyncStatus } from "@lakesync/client/react";
import { useEffect, useId, useRef, useState, useSyncExternalStore, type ReactNode } from "react";

import { Offline } from "./icons.js";
import type { Person } from "./session.js";
import { Avatar } from "./small.js";
import { THEMES, useTheme } from "./theme.js";

export type Standing = "live" | "synced" | "sending" | "offline" | "paused" | "ended" | "stuck";

const WORDS: Readonly<Record<Standing, string>> = {
  live: "Live",
  synced: "Up to date",
  sending: "Sending",
  offline: "Offline",
  paused: "Working offline",
  ended: "Signed out",
  stuck: "Not syncing",
};

const ENDED = new Set([
  "AUTH_ERROR",
  "REVOKED",
  "CLIENT_TAKEN",
  "GATEWAY_DELETED",
  "ANOTHER_GATEWAY",
]);

export function standingOf(status: Status, isOnline: boolean): Standing {
  const { lastError: error, waiting } = status;
  if (!status.isConnected) return "paused";
  if (!isOnline || error?.isUnreachable) return "offline";
  if (error && ENDED.has(error.code)) return "ended";
  if (error) return "stuck";
  if (waiting) return "sending";
  return status.isLive ? "live" : "synced";
}

const onNetwork = (listener: () => void): (() => void) => {
  addEventListener("online", listener);
  addEventListener("offline", listener);
  return () => {
    removeEventListener("online", listener);
    removeEventListener("offline", listener);
  };
};

export function useStanding(): readonly [Standing, Status] {
  const status = useSyncStatus();
  const isOnline = useSyncExternalStore(onNetwork, () => navigator.onLine);
  return [standingOf(status, isOnline), status];
}

export const waitingWords = (waiting: number): string =>
  waiting === 1 ? "1 change waits" : `${waiting} changes wait`;

export interface StatusMenuProps {
  readonly me: Person;
  readonly standing: Standing;
  readonly status: Status;
  readonly isPaused: boolean;
  readonly setPaused: (isPaused: boolean) => void;
  readonly leave: () => void;
  readonly showKeys: () => void;
}

export function StatusMenu(given: StatusMenuProps): ReactNode {
  const { me, standing, status } = given;
  const [isOpen, setOpen] = useState(false);
  const whole = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => {
    if (!isOpen) return;
    const close = (event: Event): void => {
      const isOutside =
        event instanceof MouseEvent && !whole.current?.contains(event.target as Node);
      const isEscape = event instanceof KeyboardEvent && event.key === "Escape";
      if (isOutside || isEscape) setOpen(false);
    };
    addEventListener("mousedown", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("mousedown", close);
      removeEventListener("keydown", close);
    };
  }, [isOpen]);

  const { waiting } = status;
  return (
    <div className="status" ref={whole}>
      <button
        className="pill"
        data-standing={standing}
        aria-expanded={isOpen}
        aria-controls={id}
        onClick={() => setOpen(!isOpen)}
      >
        <Avatar person={me} />
        <span className="dot" aria-hidden />
        <span className="pill-words">
          <span className="visually-hidden">{me.name}: </span>
          {WORDS[standing]}
          {waiting > 0 && <small>{waitingWords(waiting)}</small>}
        </span>
      </button>
      {isOpen && <Menu id={id} {...given} close={() => setOpen(false)} />}
    </div>
  );
}

function Menu({
  id,
  me,
  standing,
  status,
  isPaused,
  setPaused,
  leave,
  showKeys,
  close,
}: StatusMenuProps & { id: string; close: () => void }): ReactNode {
  const [theme, setTheme] = useTheme();
  return (
    <div className="menu" id={id}>
      <p className="menu-sentence">{sentenceFor(standing, status)}</p>
      <label className="menu-row">
        <span>
          <Offline /> Work offline
        </span>
        <input
          type="checkbox"
          role="switch"
          className="switch"
          checked={isPaused}
          onChange={(event) => setPaused(event.target.checked)}
        />
      </label>
      <fieldset className="menu-row themes">
        <legend>Theme</legend>
        {THEMES.map((each) => (
          <label key={each}>
            <input
              type="radio"
              name="theme"
              checked={theme === each}
              onChange={() => setTheme(each)}
            />
            <span>{each === "auto" ? "Auto" : each === "light" ? "Light" : "Dark"}</span>
          </label>
        ))}
      </fieldset>
      <button
        className="menu-row"
        onClick={() => {
          close();
          showKeys();
        }}
      >
        <span>Keyboard</span> <kbd>?</kbd>
      </button>
      <button className="menu-row" onClick={leave}>
        Not {me.name}?
      </button>
    </div>
  );
}

function sentenceFor(
  standing: Standing,
  { waiting, quarantined, isDurable, lastError }: Status,
): string {
  const kept = isDurable
    ? "Everything is kept in this browser."
    : "This browser keeps nothing when the window is closed.";
  switch (standing) {
    case "live":
      return `Changes of both arrive as they happen. ${kept}`;
    case "synced":
      return `What is here has reached the gateway${quarantined ? ", but what it did not accept" : ""}. ${kept}`;
    case "sending":
      return `${waitingWords(waiting)} for the gateway. ${kept}`;
    case "offline":
      return `There is no way to the gateway. Go on: changes are sent once there is one. ${kept}`;
    case "paused":
      return `Nothing is sent, and nothing arrives, until you are back. ${kept}`;
    case "ended":
      return `The gateway does not let this window in any more: ${lastError?.message ?? ""} ${kept}`;
    case "stuck":
      return `The gateway answered: ${lastError?.message ?? ""} ${kept}`;
  }
}
