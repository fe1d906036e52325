import "./ui/styles/index.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { createServices } from "./effects/services";
import { start } from "./effects/session";
import { routeOf } from "./state/route";
import { newState } from "./state/state";
import { createStore } from "./state/store";
import { App } from "./ui/App";
import { ServicesProvider } from "./ui/context";
import { applyTheme } from "./ui/ThemeSwitch";

applyTheme();
const services = createServices(createStore(newState(routeOf(location.pathname, location.hash))));
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
