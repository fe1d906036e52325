"""The end-to-end bench: it must notice a wrong answer, end what it starts, and publish what it measured."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest

from bench.e2e import contenders, measures, report
from bench.e2e.client import Job, _Turn
from bench.e2e.contenders import CONTENDERS, chosen, history
from bench.e2e.dialects import DIALECTS, Failed
from bench.e2e.provider import read_stamps, stamp
from bench.e2e.stage import stage
from bench.e2e.targets import targets


class TestTheClient:
    async def test_reads_an_answer_however_it_is_split(self) -> None:
        frames = b"".join(b'event: delta\nid: 1\ndata: {"text":"%b"}\n\n' % word for word in (b" w000", b" w001"))
        frames += b'event: result\nid: 2\ndata: {"message":" w000 w001"}\n\n'
        for size in range(1, len(frames)):
            turn = _Turn(DIALECTS["turnkeep"])
            for start in range(0, len(frames), size):
                turn.feed(frames[start : start + size])
            turn.check(2, is_paced=False)

    async def test_notices_deltas_that_differ_from_the_result(self) -> None:
        turn = _Turn(DIALECTS["turnkeep"])
        turn.feed(b'event: delta\ndata: {"text":" w000"}\n\nevent: result\ndata: {"message":" w000 w001"}\n\n')
        with pytest.raises(ValueError, match="differ from the result"):
            turn.check(2, is_paced=False)

    async def test_notices_an_answer_that_the_provider_did_not_give(self) -> None:
        turn = _Turn(DIALECTS["turnkeep"])
        turn.feed(b'event: delta\ndata: {"text":" w000 w000"}\n\nevent: result\ndata: {"message":" w000 w000"}\n\n')
        with pytest.raises(ValueError, match="not the answer"):
            turn.check(2, is_paced=False)

    async def test_notices_a_turn_that_failed(self) -> None:
        with pytest.raises(Failed, match="provider_error"):
            _Turn(DIALECTS["turnkeep"]).feed(b'event: error\ndata: {"code":"provider_error"}\n\n')

    def test_notices_a_paced_token_that_is_lost_or_doubled(self) -> None:
        tokens = [stamp(index) for index in range(3)]
        assert len(read_stamps("".join(tokens))) == 3
        for wrong in ([tokens[0], tokens[2]], [tokens[0], tokens[0], tokens[1]]):
            with pytest.raises(ValueError, match="token 1"):
                read_stamps("".join(wrong))

    async def test_finds_the_lag_of_each_token_in_a_delta_with_several(self) -> None:
        turn = _Turn(DIALECTS["turnkeep"])
        text = "".join(stamp(index) for index in range(4))
        moment = read_stamps(text)[-1]
        turn.pieces = [(moment + 1, text[:30]), (moment + 2, text[30:])]
        assert [round(lag) for lag in turn.lags()] == [1, 2, 2, 2]


class TestTheStage:
    def test_a_server_answers_every_turn_and_is_gone_afterwards(self) -> None:
        with stage(chosen(["floor-sqlite"])) as made:
            server = made.servers["floor-sqlite"]
            at_once = made.visit(server, Job(port=server.site.port, dialect="floor", clients=2, turns=6, tokens=20))
            paced = made.visit(
                server, Job(port=server.site.port, dialect="floor", clients=2, turns=2, tokens=5, per_second=100)
            )
            pid = server.process.pid
            directory = made.directory
        assert (at_once.report.succeeded, at_once.report.wrong, at_once.report.refused) == (6, 0, {})
        assert at_once.report.deltas == 120
        assert at_once.request_bytes > 0
        assert paced.report.succeeded == 2
        assert paced.report.lag_p50_ms is not None
        assert paced.memory_mb > 0
        assert not psutil.pid_exists(pid)
        assert not directory.exists()

    def test_turnkeep_continues_an_imported_history(self) -> None:
        with stage(chosen(["turnkeep-sqlite"])) as made:
            server = made.servers["turnkeep-sqlite"]
            made.serve(server)
            assert server.contender.seed is not None
            job = Job(port=server.site.port, dialect="turnkeep", clients=1, turns=1, tokens=20)
            new = made.visit(server, job)
            job.conversations = [server.contender.seed(server, history(3, with_tools=True))]
            continued = made.visit(server, job)
        assert new.report.refused == continued.report.refused == {}
        assert continued.request_bytes > new.request_bytes + 3 * 3_000

    def test_a_peer_that_is_not_installed_is_an_error_that_says_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bench.e2e.stage.PEERS", tmp_path / "none")
        with pytest.raises(SystemExit, match="scripts/setup bench"), stage(chosen(["agno-sqlite"])):
            pass


class TestContenders:
    def test_a_name_or_its_beginning_chooses(self) -> None:
        assert [one.name for one in chosen(["floor", "turnkeep-sqlite"])] == [
            "floor-sqlite",
            "floor-postgres",
            "turnkeep-sqlite",
        ]
        assert chosen([]) == list(CONTENDERS)
        with pytest.raises(ValueError, match="no such contender: flor"):
            chosen(["flor"])

    def test_each_one_has_a_dialect(self) -> None:
        assert {one.dialect for one in contenders.CONTENDERS} == set(DIALECTS)


def _figure(name: str, **values: Any) -> dict[str, Any]:
    contender = next(one for one in CONTENDERS if one.name == name)
    common = {"contender": contender.label, "name": name, "role": contender.role, "database": contender.database}
    return {"figure": measures.TURN, **common, **values}


FIGURES = [
    _figure("floor-sqlite", turns_per_second=1000.0, cpu_ms_per_turn=0.5),
    _figure("turnkeep-sqlite", turns_per_second=500.0, cpu_ms_per_turn=1.5),
    _figure("agents-postgres", turns_per_second=20.0, cpu_ms_per_turn=40.0),
]


class TestWhatIsPublished:
    def test_the_picture_has_a_bar_for_every_server(self) -> None:
        drawn = ElementTree.fromstring(report.picture(FIGURES, cores=2))
        texts = ["".join(element.itertext()) for element in drawn.iter() if element.tag.endswith("text")]
        assert {"bare ASGI app", "Turnkeep", "FastAPI + openai-agents"} <= set(texts)
        bars = [element for element in drawn.iter() if element.get("class") in {"ours", "floor", "peer"}]
        assert [float(bar.get("width") or 0) for bar in bars] == [380, 190, 7.6]

    def test_the_tables_stand_between_their_marks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "bench").mkdir()
        for page in ("README.md", "bench/README.md"):
            (tmp_path / page).write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
        monkeypatch.setattr(report, "ROOT", tmp_path)
        monkeypatch.setattr(report, "PICTURE", tmp_path / "picture.svg")
        found = targets({(row["figure"], row["name"]): row for row in FIGURES})
        report.publish({"machine": {"cores": 2, "load_before": 0.3}, "figures": FIGURES, "targets": found})
        readme = (tmp_path / "README.md").read_text()
        assert readme.startswith(f"before\n{report.BEGIN}\n| ")
        assert readme.endswith(f" |\n{report.END}\nafter\n")
        assert "| **Turnkeep** | SQLite | 500 | 1.5 ms | – | – | – |" in readme
        assert "| SQLite: CPU of a turn ÷ the floor's | 3 × | ≤ 3.5 × |" in (tmp_path / "bench/README.md").read_text()

    def test_a_disturbed_run_is_called_so(self) -> None:
        assert report._caution({"cores": 2, "load_before": 1.0}) == ""
        assert "load 3.5" in report._caution({"cores": 2, "load_before": 3.5})

    def test_turns_that_were_refused_stand_beside_the_lag(self) -> None:
        live = {**FIGURES[1], "figure": measures.live(200), "lag_p99_ms": 1234.0, "refused": 3}
        assert "| 1,234 ms (3 refused) |" in report.main_table([*FIGURES, live])

    def test_a_page_without_marks_is_an_error(self, tmp_path: Path) -> None:
        page = tmp_path / "README.md"
        page.write_text("no marks")
        with pytest.raises(ValueError, match="put them back"):
            report._replace(page, "table")

    def test_the_pages_of_this_project_have_the_marks(self) -> None:
        for page in ("README.md", "bench/README.md"):
            text = (report.ROOT / page).read_text()
            assert text.count(report.BEGIN) == text.count(report.END) == 1

    def test_a_target_without_its_figures_is_left_out(self) -> None:
        assert targets({}) == []
        names = [row["target"] for row in targets({(row["figure"], row["name"]): row for row in FIGURES})]
        assert names == ["SQLite: CPU of a turn ÷ the floor's"]
