import "./ui/styles/index.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { Desk } from "./effects/desk";
import { routeOf } from "./state/route";
import { newState } from "./state/state";
import { createStore } from "./state/store";
import { App } from "./ui/App";
import { DeskProvider } from "./ui/context";
import { applyTheme } from "./ui/theme";

applyTheme();
const desk = new Desk(createStore(newState(routeOf(location.pathname, location.hash))));
const place = document.getElementById("page");
if (place)
  createRoot(place).render(
    <StrictMode>
      <DeskProvider value={desk}>
        <App />
      </DeskProvider>
    </StrictMode>,
  );
void desk.start();
