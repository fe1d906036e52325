/** A formula: its source until the typesetter has been loaded, and where it cannot be set. */
import { memo, useEffect, useRef } from "react";

export const Maths = memo(function Maths({ text, isBlock }: { text: string; isBlock: boolean }) {
  const place = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    let isCurrent = true;
    void import("./typeset").then(({ typeset }) => {
      if (isCurrent && place.current) typeset(place.current, text, isBlock);
    });
    return () => {
      isCurrent = false;
    };
  }, [text, isBlock]);
  // React must not see the children that the typesetter makes, so the element is made anew for each formula.
  return (
    <span key={text} ref={place} className={isBlock ? "maths is-block" : "maths"}>
      {text}
    </span>
  );
});
