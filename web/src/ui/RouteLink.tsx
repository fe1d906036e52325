/** A link to a route of this page. A click does not load the page again; opening it in another tab works as usual. */
import type { AnchorHTMLAttributes, MouseEvent, Ref } from "react";

import { addressOf } from "../effects/addresses";
import type { Route } from "../state/route";
import { useServices } from "./context";

interface Props extends AnchorHTMLAttributes<HTMLAnchorElement> {
  route: Route;
  ref?: Ref<HTMLAnchorElement>;
}

export function RouteLink({ route, onClick: onChosen, ...rest }: Props) {
  const { navigation } = useServices();
  const onClick = (event: MouseEvent<HTMLAnchorElement>) => {
    if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigation.go(route);
    onChosen?.(event);
  };
  return <a {...rest} href={addressOf(route)} onClick={onClick} />;
}
