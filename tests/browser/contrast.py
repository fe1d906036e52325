"""The contrast of every control, computed from the colours that the browser uses in each state."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from playwright.async_api import CDPSession, Page, expect

from tests.browser.harness import TIMEOUT_MS

CONTROLS = "button, [role=button], summary, select, a[href]"
AT_REST = "at rest"
WITH_FOCUS = "with the focus"
STATES: dict[str, tuple[list[str], list[str]]] = {
    AT_REST: ([], []),
    "under the pointer": (["hover"], ["hover"]),
    WITH_FOCUS: (["focus", "focus-visible"], ["focus-within"]),
    "pressed": (["hover", "focus", "active"], ["hover", "focus-within", "active"]),
}
"""The pseudo-classes of a control, and those of every element around it."""
MIN_CONTRAST = {"text": 4.5, "large text": 3.0, "icon": 3.0, "outline": 3.0, "blank": 1.0}
"""The minimum of WCAG 2.2, 1.4.3 and 1.4.11. Both exempt disabled controls, which people read here all the same."""

FIND = "controls => [...document.querySelectorAll(controls)]"
IS_SAME = """([before, controls]) => {
  const now = [...document.querySelectorAll(controls)];
  return now.length === before.length && now.every((each, at) => each === before[at]);
}"""
DISABLE = """controls => {
  for (const each of document.querySelectorAll(controls))
    if (each.disabled === false) {
      each.disabled = true;
      each.dataset.disabledByTest = "";
    }
}"""
ENABLE = """() => {
  for (const each of document.querySelectorAll("[data-disabled-by-test]")) {
    each.disabled = false;
    delete each.dataset.disabledByTest;
  }
}"""
READ = """([controls, hasFocus]) => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = ([red, green, blue, alpha], background) =>
    [red, green, blue].map((each, at) => alpha * each + (1 - alpha) * background[at]);
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((each) =>
      each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [darker, lighter] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (lighter + 0.05) / (darker + 0.05);
  };
  const lineage = (element) => (element ? [...lineage(element.parentElement), element] : []);
  const isPlain = (element) => {
    const { filter, mixBlendMode, backgroundImage } = getComputedStyle(element);
    // The arrow of a select is a picture beside its text.
    return filter === "none" && mixBlendMode === "normal" && (backgroundImage === "none" || element.matches("select"));
  };
  // Both colours, painted from the root to the innermost element. Opacity mixes them with what lies behind.
  const paint = ([element, ...inner], colour, behind) => {
    const { backgroundColor, opacity } = getComputedStyle(element);
    const background = over(rgba(backgroundColor), behind);
    const [foreground, under] = inner.length
      ? paint(inner, colour, background)
      : [over(rgba(colour), background), background];
    return [foreground, under].map((each) => over([...each, Number(opacity)], behind));
  };
  const isVisible = (element) =>
    element.checkVisibility({ visibilityProperty: true }) && !element.closest(".visually-hidden");
  const sizeOf = (element) => {
    const { fontSize, fontWeight } = getComputedStyle(element);
    const minimum = Number(fontWeight) >= 700 ? 18.66 : 24;
    return Number.parseFloat(fontSize) >= minimum ? "large text" : "text";
  };
  // What shows that a control has the focus is drawn around it, or inside of its edge.
  const outlineOf = (control) => {
    const { outlineStyle, outlineColor, outlineOffset } = getComputedStyle(control);
    const colour = outlineStyle === "none" ? "transparent" : outlineColor;
    return ["outline", Number.parseFloat(outlineOffset) < 0 ? control : control.parentElement, colour];
  };
  const foregroundsOf = (control) => {
    const found = hasFocus && !control.matches(":disabled") ? [outlineOf(control)] : [];
    if (control.matches("select")) return [...found, ["text", control, getComputedStyle(control).color]];
    const walker = document.createTreeWalker(control, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (walker.currentNode.data.trim()) found.push([sizeOf(element), element, getComputedStyle(element).color]);
    }
    for (const icon of control.querySelectorAll("svg")) {
      const { stroke, fill } = getComputedStyle(icon);
      found.push(["icon", icon, stroke === "none" ? fill : stroke]);
    }
    return found.filter(([, element]) => isVisible(element));
  };
  return [...document.querySelectorAll(controls)].filter(isVisible).flatMap((control) => {
    const name = control.getAttribute("aria-label") ?? control.textContent.trim();
    const foregrounds = foregroundsOf(control);
    if (!foregrounds.length) return [[name, "blank", true, true, 0, "", ""]];
    return foregrounds.map(([kind, element, colour]) => {
      const chain = lineage(element);
      const [foreground, background] = paint(chain, colour, [255, 255, 255]);
      const isShown = chain.every((each) => getComputedStyle(each).opacity !== "0");
      const texts = [foreground, background].map((each) => each.map(Math.round).join(" "));
      return [name, kind, chain.every(isPlain), isShown, contrast(foreground, background), ...texts];
    });
  });
}"""


class Foreground(NamedTuple):
    """A text or an icon of a control, the outline of its focus, or `blank` for a control that has nothing."""

    control: str
    kind: str
    is_plain: bool
    """No filter and no image changes these colours."""
    is_shown: bool
    """False for buttons that appear only with the pointer or the focus near them."""
    contrast: float
    foreground: str
    background: str

    def __str__(self) -> str:
        filtered = "" if self.is_plain else ", and a filter or an image changes these colours"
        return f"{self.kind} of {self.control!r}: {self.contrast:.2f}, {self.foreground} on {self.background}{filtered}"


class ForcedStates:
    """Forces all controls of a page into one state through the DevTools protocol. Nothing is clicked."""

    def __init__(self, session: CDPSession, controls: list[int], around: list[int]) -> None:
        self._session = session
        self._controls = controls
        self._around = around

    @classmethod
    @asynccontextmanager
    async def on(cls, page: Page) -> AsyncIterator[Self]:
        session = await page.context.new_cdp_session(page)
        try:
            await session.send("DOM.enable")
            await session.send("CSS.enable")
            root = (await session.send("DOM.getDocument", {"depth": 0}))["root"]["nodeId"]
            found = [
                (await session.send("DOM.querySelectorAll", {"nodeId": root, "selector": selector}))["nodeIds"]
                for selector in (CONTROLS, f":has({CONTROLS}):not({CONTROLS})")
            ]
            yield cls(session, *found)
        finally:
            await session.detach()

    async def force(self, state: str) -> None:
        for nodes, pseudo_classes in zip((self._controls, self._around), STATES[state], strict=True):
            forced = [{"nodeId": node, "forcedPseudoClasses": pseudo_classes} for node in nodes]
            await asyncio.gather(*(self._session.send("CSS.forcePseudoState", each) for each in forced))


async def foregrounds(page: Page, *, has_focus: bool = False) -> list[Foreground]:
    """The texts and icons of the controls, in their present state. With the focus, also their outlines."""
    return [Foreground(*found) for found in await page.evaluate(READ, [CONTROLS, has_focus])]


async def low_contrast(page: Page, *names: str) -> list[str]:
    """The controls with too little contrast in some theme or state. Waits for the controls in `names` first."""
    await page.mouse.move(0, 0)
    for name in names:
        called = page.get_by_label(name, exact=True).or_(page.get_by_text(name, exact=True))
        await expect(page.locator(f":is({CONTROLS}):not(:disabled)").and_(called).first).to_be_visible()
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while True:
            before = await page.evaluate_handle(FIND, CONTROLS)
            found = [problem async for problem in _problems(page)]
            # An element that React replaced meanwhile was not in any forced state.
            if await page.evaluate(IS_SAME, [before, CONTROLS]):
                return found


async def _problems(page: Page) -> AsyncIterator[str]:
    async with ForcedStates.on(page) as states:
        for state in STATES:
            await states.force(state)
            async for problem in _problems_in(page, state):
                yield problem
        await page.evaluate(DISABLE, CONTROLS)
        for state in (AT_REST, "under the pointer"):
            await states.force(state)
            async for problem in _problems_in(page, state):
                yield f"disabled, {problem}"
        await page.evaluate(ENABLE)


async def _problems_in(page: Page, state: str) -> AsyncIterator[str]:
    for scheme in ("light", "dark"):
        # With reduced motion the style sheet has no transitions.
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for one in await foregrounds(page, has_focus=state == WITH_FOCUS):
            is_clear = one.is_plain and one.contrast >= MIN_CONTRAST[one.kind]
            if not is_clear and (one.is_shown or state != AT_REST):
                yield f"{scheme}, {state}: {one}"
