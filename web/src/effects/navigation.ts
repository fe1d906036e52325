/** The route in the state and the address in the browser: both always name the same place of the page. */
import { type Route, routeOf } from "../state/route";
import type { Store } from "../state/store";
import { words } from "../words";
import { addressOf, currentAddress, routeHere } from "./addresses";

type Listener = (route: Route, previous: Route) => void;

export class Navigation {
  #store: Store;
  #listeners: Listener[] = [];
  /** Forms with changes that are not saved. */
  #unsaved = new Set<object>();

  constructor(store: Store) {
    this.#store = store;
  }

  /** Follow the browser's back and forward buttons. */
  start(): void {
    addEventListener("popstate", () => {
      if (this.mayLeave()) this.show(routeHere());
      // The browser has already left. The address of the form becomes the newest one again.
      else history.pushState(null, "", addressOf(this.#store.get().route));
    });
  }

  /** A form has changes that are not saved: until the returned function is called, leaving it asks first. */
  hold(): () => void {
    const form = {};
    this.#unsaved.add(form);
    return () => this.#unsaved.delete(form);
  }

  get isHeld(): boolean {
    return this.#unsaved.size > 0;
  }

  /** Whether nothing would be lost, or the user agrees to lose it. */
  mayLeave(): boolean {
    return !this.isHeld || confirm(words.leaveUnsaved);
  }

  /** Called after each change of the route by the user, with the route before it. */
  onShow(listener: Listener): void {
    this.#listeners.push(listener);
  }

  /** Go to a route, as a link does: the back button leads back. */
  go(route: Route): void {
    if (!this.mayLeave()) return;
    const here = currentAddress();
    if (addressOf(route) !== here) history.pushState({ from: here }, "", addressOf(route));
    this.show(route);
  }

  /** Leave for `route`. If the user came from there, this goes back, so that the back button does not lead here again. */
  close(route: Route): void {
    const { from } = (history.state ?? {}) as { from?: string };
    if (from === addressOf(route)) history.back();
    else this.go(route);
  }

  /** Give what is shown another address. Nothing is loaded for it. */
  replace(route: Route): void {
    history.replaceState(null, "", addressOf(route));
    this.#store.dispatch({ type: "route", route });
  }

  /** Show the route of an address of this page, in place of the present one. */
  restore(address: string): void {
    const { pathname, hash } = new URL(address, location.origin);
    const route = routeOf(pathname, hash);
    history.replaceState(null, "", addressOf(route));
    this.show(route);
  }

  /** Show a route whose address the browser already has. */
  show(route: Route): void {
    const { route: previous } = this.#store.get();
    this.#store.dispatch({ type: "route", route });
    for (const listener of this.#listeners) listener(route, previous);
  }
}
