"""The figures: for each one, which load is sent to a server and what is read off."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from bench.e2e.client import Job
from bench.e2e.contenders import Server, history
from bench.e2e.processes import cpu_seconds, memory_mb
from bench.e2e.stage import Sample, Stage

Values = dict[str, float]

CLIENTS = 16
PER_SECOND = 30

TURN = "a turn of 20 tokens"
AFTER_20 = "a turn of 20 tokens after 20 turns"
AFTER_200 = "a turn of 20 tokens after 200 turns"
AFTER_TOOLS = "a turn of 20 tokens after 20 turns with tools"
LONG = "a turn of 500 tokens"
PACED = "a turn of 500 tokens, 200 per second"
FIRST = "the first delta"
START = "start"
IDLE = "at idle"


@dataclass(frozen=True)
class Effort:
    """How long to look. The quick one shows that everything runs."""

    rounds: int
    seconds: float
    """Of one visit with short turns."""
    conversations: int
    """With a history. They are made anew for each visit, and each one is asked four times."""
    firsts: int
    live: tuple[int, ...]
    live_seconds: int
    live_rounds: int
    starts: int
    idle_seconds: float
    open_streams: int
    settle_seconds: float
    """How long a server is given to become idle. A connection of PostgreSQL that has become idle takes up to ten
    seconds to report its last transactions."""
    long_turns: int
    """The least number of turns of 500 tokens."""
    is_whole: bool
    """Whether peers are looked at also where they take long, and long histories are made."""


FULL = Effort(
    rounds=5,
    seconds=3.0,
    conversations=64,
    firsts=15,
    live=(200, 500, 1_000),
    live_seconds=10,
    live_rounds=2,
    starts=3,
    idle_seconds=6.0,
    open_streams=1_000,
    settle_seconds=14.0,
    long_turns=CLIENTS,
    is_whole=True,
)
QUICK = Effort(
    rounds=1,
    seconds=0.7,
    conversations=16,
    firsts=6,
    live=(50,),
    live_seconds=2,
    live_rounds=1,
    starts=1,
    idle_seconds=1.5,
    open_streams=50,
    settle_seconds=1.5,
    long_turns=4,
    is_whole=False,
)


@dataclass(frozen=True)
class Measure:
    """One figure of one server. `visit` takes it once."""

    figure: str
    visit: Callable[[], Values]
    rounds: int


class Measures:
    """All figures of one server."""

    def __init__(self, stage: Stage, server: Server, effort: Effort) -> None:
        self._stage = stage
        self._server = server
        self._contender = server.contender
        self._effort = effort
        self._rate = 0.0

    def under_load(self) -> Iterator[Measure]:
        """What is measured in turns with the other servers. Warms the server up first."""
        self._warm_up()
        rounds = self._effort.rounds
        turns = max(2 * CLIENTS, int(self._rate * self._effort.seconds))
        yield Measure(TURN, lambda: self._turns(turns=turns), rounds)
        if self._contender.name == "turnkeep-workers":
            return  # its other figures are those of one worker
        # Peers take seconds where the others take milliseconds, and are far from every bound.
        is_peer = self._contender.role == "peer"
        rounds = min(rounds, 3) if is_peer else rounds
        if self._contender.seed is not None:
            yield Measure(AFTER_20, lambda: self._after(20), rounds)
        if self._contender.role == "ours":
            yield Measure(AFTER_TOOLS, lambda: self._after(20, with_tools=True), rounds)
            if self._effort.is_whole:
                yield Measure(AFTER_200, lambda: self._after(200), rounds)
        long = self._effort.long_turns // 2 if is_peer else max(self._effort.long_turns, turns // 8)
        yield Measure(LONG, lambda: self._tokens(turns=long, tokens=500, per_second=0), rounds)
        if not is_peer:
            yield Measure(PACED, lambda: self._tokens(turns=CLIENTS, tokens=500, per_second=200), rounds)
        yield Measure(FIRST, self._first, rounds)

    def of_life(self) -> Iterator[Measure]:
        """Many live turns at once."""
        is_peer = self._contender.role == "peer"
        if not self._contender.is_tried_live or (is_peer and not self._effort.is_whole):
            return
        for count in self._effort.live:
            if not is_peer or count <= 500:  # a peer would take minutes
                rounds = 1 if is_peer or count >= 1_000 else self._effort.live_rounds
                yield Measure(live(count), partial(self._live, count), rounds)

    def at_rest(self) -> Iterator[Measure]:
        """What a server takes to start, and when it has nothing to do. The first of these starts it anew."""
        if self._contender.role == "peer" and not self._effort.is_whole:
            return
        yield Measure(START, self._start, self._effort.starts)
        yield Measure(IDLE, self._idle, 1)
        if self._contender.role == "ours" and self._contender.name != "turnkeep-workers":
            count = self._effort.open_streams
            yield Measure(silent(count, 1), lambda: self._silent(turns=1, readers=count), 1)
            yield Measure(silent(count, count), lambda: self._silent(turns=count, readers=count), 1)

    def _job(self, **fields: object) -> Job:
        common = {"port": self._server.site.port, "dialect": self._contender.dialect, "clients": CLIENTS, "tokens": 20}
        return Job(**common | fields)  # type: ignore[arg-type]

    def _visit(self, job: Job) -> tuple[Sample, Values]:
        """What every visit tells: how much went wrong, if anything did."""
        sample = self._stage.visit(self._server, job)
        values: Values = {}
        if sample.report.refused:
            values["refused"] = sum(sample.report.refused.values())
        if sample.report.wrong:
            values["wrong"] = sample.report.wrong
        if sample.report.problem:
            print(f"bench: {self._contender.name}: {sample.report.problem[:300]}")
        if sample.report.succeeded == 0:
            raise RuntimeError(f"{self._contender.name} answers no turn: {sample.report.problem}")
        return sample, values

    def _warm_up(self) -> None:
        """Open what is opened lazily, and see how quick the server is."""
        for turns in (CLIENTS, 2 * CLIENTS):
            sample, _ = self._visit(self._job(turns=turns))
            self._rate = sample.turns_per_second

    def _turns(self, **fields: object) -> Values:
        sample, values = self._visit(self._job(**fields))
        values["turns_per_second"] = sample.turns_per_second
        values["cpu_ms_per_turn"] = sample.cpu_ms_per_turn
        if self._contender.database == "postgres":
            values["database_cpu_ms_per_turn"] = sample.database_cpu_ms_per_turn
        values["request_bytes_per_turn"] = sample.request_bytes / sample.turns
        return values

    def _after(self, turns: int, *, with_tools: bool = False) -> Values:
        seed = self._contender.seed
        assert seed is not None
        self._stage.serve(self._server)
        messages = history(turns, with_tools=with_tools)
        conversations = [seed(self._server, messages) for _ in range(self._effort.conversations)]
        self._stage.rest(self._server)
        asked = min(4 * len(conversations), max(2 * CLIENTS, int(self._rate * self._effort.seconds)))
        return self._turns(turns=asked, conversations=conversations)

    def _tokens(self, **fields: int) -> Values:
        sample, values = self._visit(self._job(**fields))
        tokens = sample.turns * fields["tokens"]
        values["cpu_us_per_token"] = sample.cpu_seconds * 1e6 / tokens
        values["tokens_per_second"] = tokens / sample.report.seconds
        values["deltas_per_token"] = sample.report.deltas / tokens
        return values

    def _first(self) -> Values:
        sample, values = self._visit(self._job(clients=1, turns=self._effort.firsts, tokens=5, per_second=50))
        assert sample.report.first_lag_ms is not None
        assert sample.report.first_ms is not None
        return values | {"first_delta_ms": sample.report.first_lag_ms, "after_the_request_ms": sample.report.first_ms}

    def _live(self, count: int) -> Values:
        seconds = self._effort.live_seconds
        sample, values = self._visit(
            self._job(
                clients=count,
                turns=count,
                tokens=PER_SECOND * seconds,
                per_second=PER_SECOND,
                start_seconds=1.0,
                patience_seconds=6.0 * seconds,
            )
        )
        report = sample.report
        assert report.lag_p50_ms is not None
        assert report.lag_p99_ms is not None
        tokens = report.succeeded * PER_SECOND * seconds
        return values | {
            "ended": report.succeeded,
            "lag_p50_ms": report.lag_p50_ms,
            "lag_p99_ms": report.lag_p99_ms,
            "longest_seconds": report.longest_seconds,
            "cpu_seconds": sample.cpu_seconds,
            "deltas_per_token": report.deltas / tokens,
            "memory_mb": sample.memory_mb,
        }

    def _start(self) -> Values:
        """Of files that are in the page cache, with a database that exists."""
        self._stage.serve(self._server)
        self._server.process.end()
        self._server.on_other_port()
        began = time.monotonic()
        self._server.start()
        seconds = time.monotonic() - began
        used = cpu_seconds(self._server.process.pid)
        time.sleep(0.5)
        return {
            "ready_seconds": seconds,
            "start_cpu_seconds": used,
            "memory_mb": memory_mb(self._server.process.pid),
        }

    def _idle(self) -> Values:
        self._stage.serve(self._server)
        time.sleep(self._effort.settle_seconds if self._contender.database == "postgres" else 1)
        return self._watch(self._effort.idle_seconds)

    def _watch(self, seconds: float) -> Values:
        """A while in which nothing is asked."""
        pid = self._server.process.pid
        is_postgres = self._contender.database == "postgres"
        before = cpu_seconds(pid), self._stage.transactions(self._server) if is_postgres else 0
        began = time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        after = cpu_seconds(pid), self._stage.transactions(self._server) if is_postgres else 0
        values = {"cpu_percent": (after[0] - before[0]) / elapsed * 100, "memory_mb": memory_mb(pid)}
        if is_postgres:
            # Two transactions are the bench's own: the query of the first look, and the login of the second.
            values["queries_per_second"] = max(0, after[1] - before[1] - 2) / elapsed
        return values

    def _silent(self, *, turns: int, readers: int) -> Values:
        """Open streams on which nothing happens: the model says a word, and the next one much later."""
        watched = self._effort.idle_seconds
        pause = self._effort.settle_seconds + watched + 4
        job = self._job(
            clients=turns,
            turns=turns,
            tokens=2,
            per_second=1 / pause,
            start_seconds=self._effort.settle_seconds / 4,
            followers=readers - turns,
        )
        self._stage.serve(self._server)
        with self._stage.sending(job) as clients:
            time.sleep(self._effort.settle_seconds)
            values = self._watch(watched)
            report = self._stage.finish(clients)
        return values | {"ended": report.succeeded}


def live(count: int) -> str:
    return f"{count:,} live turns"


def silent(readers: int, turns: int) -> str:
    return f"{readers:,} silent streams of {'one turn' if turns == 1 else f'{turns:,} turns'}"


def combined(samples: list[Values]) -> Values:
    """The median of each value; of what went wrong, all of it."""
    found: Values = {}
    for name in {name: None for sample in samples for name in sample}:
        values = [sample[name] for sample in samples if name in sample]
        found[name] = sum(values) if name in {"refused", "wrong"} else median(values)
    return found
