/** The page's own line drawings, all on a grid of 20. */
import { memo } from "react";

const PATHS = {
  plus: "M10 4v12M4 10h12",
  search: "M9 3.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11zM13 13l4 4",
  close: "M5 5l10 10M15 5L5 15",
  pencil: "M4 16l.8-3.2L13.3 4.300a1.600 1.600 0 0 1 2.300 2.300L7.200 15.200 4 16zM12 5.700l2.300 2.300",
  trash: "M4 6h12M8 6V4.500h4V6M5.500 6l.7 10h7.600l.7-10M8.500 9v4.500M11.500 9v4.500",
  copy: "M7 7.500A1.500 1.500 0 0 1 8.500 6h6A1.500 1.500 0 0 1 16 7.500v7a1.500 1.500 0 0 1-1.500 1.500h-6A1.500 1.500 0 0 1 7 14.500zM4 12.500v-7A1.500 1.500 0 0 1 5.500 4h6",
  check: "M4.500 10.500l3.500 3.500 7.500-8",
  again: "M15.500 8A6 6 0 1 0 16 11M15.800 4v4.200h-4.200",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M5 8l5 5 5-5",
  arrowDown: "M10 4v12M5 11l5 5 5-5",
  send: "M10 16V4.500M5 9.500l5-5 5 5",
  stop: "M6.500 6.500h7v7h-7z",
  clip: "M14.500 9.500l-5 5a3 3 0 0 1-4.300-4.300l6-6a2 2 0 0 1 2.900 2.900l-5.700 5.700a1 1 0 0 1-1.500-1.400l4.900-4.900",
  file: "M6 3.500h5l4 4v9H6zM11 3.500v4h4",
  download: "M10 3.500v9M6 9l4 4 4-4M4.500 16.500h11",
  menu: "M3.500 6h13M3.500 10h13M3.500 14h13",
  more: "M4.500 10h.01M10 10h.01M15.500 10h.01",
  gear: "M10 7.300a2.700 2.700 0 1 1 0 5.400 2.700 2.700 0 0 1 0-5.400zM10 2.800v2M10 15.200v2M2.800 10h2M15.200 10h2M4.900 4.900l1.400 1.400M13.700 13.700l1.400 1.400M4.900 15.100l1.400-1.400M13.700 6.300l1.400-1.400",
  warn: "M10 3.500l7 12.500H3zM10 8.500v3.500M10 14.200h.01",
  bolt: "M11 3L5 11.500h4.500L9 17l6-8.500h-4.500z",
  thought: "M7 15.500h6M8 17.500h4M10 2.500a5 5 0 0 1 3 9c-.7.600-1 1.200-1 2H8c0-.8-.3-1.400-1-2a5 5 0 0 1 3-9z",
} as const;

export type IconName = keyof typeof PATHS;

export const Icon = memo(function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
});
