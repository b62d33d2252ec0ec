/** A document for React to render into: imported before it. */

import { Window } from "happy-dom";

const window = new Window({ url: "https://app.example" });
const { document, navigator, HTMLElement, HTMLIFrameElement, Node } = window;
const given = { window, document, navigator, HTMLElement, HTMLIFrameElement, Node };
for (const [name, value] of Object.entries({ ...given, IS_REACT_ACT_ENVIRONMENT: true })) {
  // Newer releases of Node have a navigator that cannot be assigned.
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}
