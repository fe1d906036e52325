/** A link to a place of this page: followed without loading it again, and opened elsewhere like every other link. */
import type { AnchorHTMLAttributes, MouseEvent, Ref } from "react";

import { pathOf, type Route } from "../state/route";
import { useServices } from "./context";

interface Props extends AnchorHTMLAttributes<HTMLAnchorElement> {
  route: Route;
  ref?: Ref<HTMLAnchorElement>;
}

export function RouteLink({ route, ...rest }: Props) {
  const { navigation } = useServices();
  const follow = (event: MouseEvent) => {
    if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigation.go(route);
  };
  return <a {...rest} href={pathOf(route)} onClick={follow} />;
}
