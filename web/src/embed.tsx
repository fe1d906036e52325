/** The chat at `/embed`, for a frame in a page of another site: the same services and parts as those of the page. */
import "./ui/styles/index.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { routeHere } from "./effects/addresses";
import { HostPage } from "./effects/hostPage";
import { applyLanguage } from "./effects/language";
import { createServices } from "./effects/services";
import { start } from "./effects/session";
import { newState } from "./state/state";
import { createStore } from "./state/store";
import { ServicesProvider } from "./ui/context";
import { EmbeddedChat } from "./ui/EmbeddedChat";
import { sendTokens } from "./wire/credentials";

const options = new URLSearchParams(location.search);
const theme = options.get("theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset["theme"] = theme;
await applyLanguage(options.get("language"));

const store = createStore(newState(routeHere()));
const host = new HostPage(store);
sendTokens(host);
const services = createServices(store, host);
const root = document.getElementById("page");
if (root)
  createRoot(root).render(
    <StrictMode>
      <ServicesProvider value={services}>
        <EmbeddedChat />
      </ServicesProvider>
    </StrictMode>,
  );
if (host.isFramed) {
  host.listen(services);
  void start(services);
}
