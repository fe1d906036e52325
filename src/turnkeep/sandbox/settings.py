"""The settings of a runner, as the runner reads them. They are declared in `turnkeep.config.settings`."""

from collections.abc import Mapping

from turnkeep.config import KNOWN_NAMES, RUNNER_VARIABLES, ConfigFile, RunnerSection, refuse_unknown
from turnkeep.config.variables import read_variables
from turnkeep.errors import InvalidRequest
from turnkeep.http_server.sockets import is_loopback
from turnkeep.sandbox.boxes.ports import MIB, BoxLimits

__all__ = ["RUNNER_VARIABLES", "RunnerSettings", "read_runner_settings"]


class RunnerSettings(RunnerSection, frozen=True, kw_only=True):
    """The settings, and the limits of a box that follow from them."""

    @property
    def limits(self) -> BoxLimits:
        return BoxLimits(
            memory_bytes=self.memory_mib * MIB,
            disk_bytes=self.disk_mib * MIB,
            file_bytes=self.disk_mib * MIB,
            files=self.files,
            processes=self.processes,
            output_bytes=self.output_kib * 1024,
            cpu_seconds=max(1, round(self.step_seconds) * 2),
        )

    @property
    def needs_cgroup(self) -> bool:
        """Whether no box may run without a memory cgroup."""
        if self.driver != "bubblewrap":
            return False
        return self.memory_guard == "cgroup" or (self.memory_guard == "auto" and not is_loopback(self.host))

    def check(self) -> None:
        """Raises InvalidRequest if the runner would run turns of anybody."""
        if not self.server:
            raise InvalidRequest(
                "Say whose turns to run: TURNKEEP_SANDBOX_SERVER (--server) is the address at which this runner "
                "reaches the server, its TURNKEEP_PUBLIC_URL."
            )
        if not self.secret and not is_loopback(self.host):
            raise InvalidRequest(
                f"Other machines can reach {self.host}, and run code here. Set TURNKEEP_SANDBOX_SECRET to the same "
                "long random text for runner and server."
            )


def read_runner_settings(
    environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None, file: ConfigFile | None = None
) -> RunnerSettings:
    """Settings from `flags` over `environ` over `file`.

    Raises InvalidRequest with the name, what is allowed and what was given, and for a `TURNKEEP_` name that is unknown.
    """
    refuse_unknown(environ, KNOWN_NAMES)
    return RunnerSettings(**read_variables(RUNNER_VARIABLES, environ, flags, file))
