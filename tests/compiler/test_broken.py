"""Transcripts of the kind that people post when a thread answers 400 for ever. None stays broken.

`like` names the reports after which a file was modelled; the texts are our own.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from turnkeep.cli.doctor import diagnose

FILES = sorted(Path(__file__).with_name("broken").glob("*.json"))


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(request.param.read_text("utf-8"))
    return loaded


class TestAPostedTranscript:
    def test_is_refused_for_the_reasons_that_were_reported(self, case: dict[str, Any]) -> None:
        diagnosis = diagnose(case["transcript"])
        assert {violation.rule for violation in diagnosis.violations} == set(case["expect"])

    def test_is_accepted_once_repaired(self, case: dict[str, Any]) -> None:
        repaired = diagnose(case["transcript"]).repaired
        assert diagnose(repaired).violations == []

    def test_is_not_changed_by_repairing_it_again(self, case: dict[str, Any]) -> None:
        repaired = diagnose(case["transcript"]).repaired
        assert diagnose(repaired).repaired == repaired

    def test_keeps_its_form(self, case: dict[str, Any]) -> None:
        diagnosis = diagnose(case["transcript"])
        assert isinstance(diagnosis.repaired, type(case["transcript"]))
        assert diagnose(diagnosis.repaired).transcript.form == diagnosis.transcript.form
