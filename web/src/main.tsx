import "./ui/styles/index.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { routeHere } from "./effects/addresses";
import { applyLanguage } from "./effects/language";
import { createServices } from "./effects/services";
import { start } from "./effects/session";
import { newState } from "./state/state";
import { createStore } from "./state/store";
import { App } from "./ui/App";
import { ServicesProvider } from "./ui/context";
import { applyTheme } from "./ui/ThemeSwitch";

applyTheme();
await applyLanguage();
const services = createServices(createStore(newState(routeHere())));
const root = document.getElementById("page");
if (root)
  createRoot(root).render(
    <StrictMode>
      <ServicesProvider value={services}>
        <App />
      </ServicesProvider>
    </StrictMode>,
  );
void start(services);
