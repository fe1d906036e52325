"""A message has a limit; what fits is not touched, and what does not fit says so."""

import msgspec

from turnkeep.model.truncation import cut_bytes, fit_display
from turnkeep_client.wire.blocks import StepPart, TextPart
from turnkeep_client.wire.display import Display
from turnkeep_client.wire.events import Source


def size_of(display: Display) -> int:
    return len(msgspec.json.encode(display.content))


class TestADisplay:
    def test_that_fits_stays_as_it_is(self) -> None:
        display = Display(content=(TextPart(text="x" * 500), StepPart(id="s", name="n", status="succeeded", result=1)))
        assert fit_display(display, limit=1_000) == display

    def test_loses_long_values_of_steps_before_any_word(self) -> None:
        step = StepPart(id="s", name="n", status="succeeded", args={"a": "y" * 50_000}, result="z" * 50_000)
        display = fit_display(Display(content=(TextPart(text="Words."), step)), limit=40_000)
        words, cut = display.content
        assert words == TextPart(text="Words.")
        assert isinstance(cut, StepPart)
        assert str(cut.result).startswith("z" * 16_000)
        assert str(cut.result).endswith("[cut: 50,000 characters in all]")
        assert size_of(display) <= 40_000

    def test_is_cut_to_the_largest_size_that_fits(self) -> None:
        steps = tuple(StepPart(id=f"{n}", name="n", status="succeeded", result="z" * 15_000) for n in range(60))
        display = fit_display(Display(content=steps), limit=800_000)
        assert 790_000 < size_of(display) <= 800_000
        lengths = {len(str(part.result)) for part in display.content if isinstance(part, StepPart)}
        assert len(lengths) == 1
        assert all(part.is_cut is True for part in display.content if isinstance(part, StepPart))

    def test_cuts_only_what_is_long(self) -> None:
        short = StepPart(id="a", name="n", status="succeeded", result="z" * 2_000)
        long = StepPart(id="b", name="n", status="succeeded", result={"rows": ["z" * 90_000]})
        kept, cut = fit_display(Display(content=(short, long)), limit=40_000).content
        assert kept == short
        assert isinstance(cut, StepPart)
        assert 37_000 < len(str(cut.result)) < 40_000

    def test_cuts_words_where_steps_alone_are_not_enough(self) -> None:
        words = tuple(TextPart(text=f"{n}" * 9_000) for n in range(9))
        display = fit_display(Display(content=words), limit=40_000)
        assert len(display.content) == 9
        assert 39_000 < size_of(display) <= 40_000

    def test_loses_its_beginning_last_of_all_with_a_note(self) -> None:
        texts = tuple(TextPart(text=f"{n}" * 80) for n in range(10))
        display = fit_display(Display(content=texts), limit=400)
        assert display.content[0] == TextPart(
            text="[cut: 7 earlier parts; the events of the turn have them]", is_cut=True
        )
        assert display.content[1:] == texts[-3:]

    def test_keeps_the_first_of_its_sources(self) -> None:
        sources = tuple(Source(title=f"{n}", snippet="ж" * 2_000, number=n) for n in range(1, 1_001))
        kept = fit_display(Display(sources=sources)).sources
        assert kept == sources[: len(kept)]
        assert 90 < len(kept) < 100


class TestAText:
    def test_is_cut_at_whole_characters_with_a_note(self) -> None:
        assert cut_bytes("short", limit=1_000) == "short"
        cut = cut_bytes("ü" * 1_000, limit=1_000)
        assert cut.startswith("üü")
        assert cut.endswith("[cut: 1,000 characters in all]")
        assert len(cut.encode()) <= 1_000
