import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

/** The client's own sources, as this example lies beside them: elsewhere it is a dependency. */
const client = new URL("../../clients/js/src/", import.meta.url).pathname;

export default defineConfig({
  plugins: [react()],
  base: "./",
  resolve: {
    alias: [
      { find: /^@lakesync\/client$/, replacement: `${client}index.ts` },
      { find: /^@lakesync\/client\/(.+)$/, replacement: `${client}$1.ts` },
    ],
    dedupe: ["react", "react-dom"],
  },
  server: { fs: { allow: ["../.."] } },
  build: { target: "es2022", assetsInlineLimit: 0 },
});
