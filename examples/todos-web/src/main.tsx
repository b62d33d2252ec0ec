import "@fontsource-variable/figtree/wght.css";
import "./tokens.css";
import "./app.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./app.js";
import { applyTheme } from "./theme.js";

applyTheme();
createRoot(document.querySelector("#root")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
