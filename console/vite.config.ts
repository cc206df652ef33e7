import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const api = process.env.MOORING_URL ?? "http://127.0.0.1:7410";

export default defineConfig({
  base: "/console/",
  plugins: [react(), tailwindcss()],
  // Nothing is inlined: the page's policy allows scripts and styles from files only.
  build: {
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    // The terminal is a document of its own, with a policy of its own; nothing of it is loaded with the console.
    rolldownOptions: { input: ["index.html", "terminal.html"] },
  },
  server: { proxy: { "/api": { target: api, changeOrigin: false } } },
});
