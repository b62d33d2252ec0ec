/** What the keyboard does. */

import type { KeyboardEvent, ReactNode } from "react";

import { Close } from "./icons.js";
import { Dialog } from "./small.js";

const KEYS: readonly (readonly [keys: readonly string[], what: string])[] = [
  [["N"], "Add something"],
  [["↑", "↓"], "Go up or down"],
  [["X"], "Tick, or untick"],
  [["Enter"], "Open"],
  [["Esc"], "Close, or leave a field as it was"],
  [["Alt ↑", "Alt ↓"], "Move up or down"],
  [["Del"], "Delete"],
  [["1", "…", "9"], "Show a list"],
  [["O"], "Work offline, or be back"],
  [["?"], "Show these"],
];

export const Keys = ({ close }: { close: () => void }): ReactNode => (
  <Dialog title="Keyboard" close={close}>
    <header className="dialog-bar">
      <h2>Keyboard</h2>
      <button className="icon-button" aria-label="Close" onClick={close}>
        <Close />
      </button>
    </header>
    <dl className="keys">
      {KEYS.map(([keys, what]) => (
        <div key={what}>
          <dt>{keys.map((key) => (key === "…" ? key : <kbd key={key}>{key}</kbd>))}</dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  </Dialog>
);

/** Whether a key is typed into a field. */
export const isTyping = (event: { target: EventTarget | null }): boolean =>
  event.target instanceof HTMLElement &&
  (event.target.isContentEditable ||
    event.target instanceof HTMLTextAreaElement ||
    event.target instanceof HTMLSelectElement ||
    (event.target instanceof HTMLInputElement &&
      !["checkbox", "radio", "file"].includes(event.target.type)));

/** Move the focus from a todo to the next one that is shown, up or down. */
export function moveFocus(event: KeyboardEvent, by: -1 | 1): void {
  const lines = [...document.querySelectorAll<HTMLElement>("[data-todo]")];
  const at = lines.findIndex((line) => line.contains(event.target as Node));
  lines[at + by]?.querySelector<HTMLElement>(".todo-title")?.focus();
}
