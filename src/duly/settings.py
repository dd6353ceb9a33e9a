"""The settings and their sources: keywords, then DULY_… variables, then [tool.duly]."""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from duly.core.addresses import without_driver
from duly.core.amounts import (
    check_count,
    check_retention,
    check_seconds,
    read_seconds,
    retention_of,
)
from duly.core.key import check_key
from duly.core.secret_names import REDACTED
from duly.core.served_queues import ServedQueues, parse_names, parse_queues
from duly.core.suggestions import nearest
from duly.errors import BadOption
from duly.limits import (
    ACT_RETENTION_SECONDS,
    BEAT_SECONDS,
    CLAIM_BATCH,
    DEAD_RETENTION_SECONDS,
    GRACE_SECONDS,
    LEASE_MARGIN_SECONDS,
    LEASE_SECONDS,
    LOOK_SECONDS,
    RECHECK_SECONDS,
    RETENTION_SECONDS,
    STALLED_SECONDS,
)
from duly.project_file import read_project

PREFIX = "DULY_"
_RETENTIONS = ("retention", "dead_retention", "act_retention")
_OTHERS = re.compile(
    "DULY_(PYPROJECT$|CHILD$|STARTED_BY$|FAULTPOINTS$|TEST_|PROVE_|BENCHMARK_|EVERY_"
    r"|(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$)"
)
"""Variables that are not settings.

These name the settings file, belong to duly's own machinery, or are set by Kubernetes in every pod
if a service is called "duly" or "duly-…".
"""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one worker works."""

    concurrency: int = 10
    async_limit: int = 200
    process_limit: int | None = None
    """Of the tasks that `concurrency` allows, how many may run in processes. None means all."""
    queues: tuple[tuple[str, int | None], ...] = ()
    """The queues to serve, each with its limit per worker. Empty means every queue."""
    exclude_queues: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    """The modules that define tasks, which are imported before the worker starts."""
    max_tasks: int | None = None
    """The number of tasks that the worker starts before it ends."""
    lease: float = LEASE_SECONDS
    beat: float = BEAT_SECONDS
    grace: float = GRACE_SECONDS
    retention: float = RETENTION_SECONDS
    dead_retention: float = DEAD_RETENTION_SECONDS
    """How long dead letters are kept. It is longer, because they still need attention."""
    act_retention: float = ACT_RETENTION_SECONDS
    """How long audit entries of operator actions are kept."""
    recheck: float = RECHECK_SECONDS
    """How often the store is checked for runs that can continue, in case a wake-up was lost."""
    stalled_after: float = STALLED_SECONDS
    """How long an engine thread may spend in one turn before it is considered stalled."""
    carries: bool = False
    """True if it runs only what another engine delivers, and claims nothing else."""
    one_slot: bool = False
    """True if it runs one suspect run at a time and nothing else."""
    version: str | None = None
    """The application's own version."""

    def __post_init__(self) -> None:
        """Raise BadOption for values that cannot work."""
        check_count("concurrency", self.concurrency)
        check_count("async_limit", self.async_limit)
        if self.process_limit is not None:
            check_count("process_limit", self.process_limit)
        if self.max_tasks is not None:
            check_count("max_tasks", self.max_tasks)
        if self.queues and self.exclude_queues:
            raise BadOption(
                "set queues or exclude_queues, not both: queues already lists every queue to serve"
            )
        if self.version is not None:
            check_key(self.version, "version")
        for name in ("lease", "beat", "grace", "recheck", "stalled_after"):
            check_seconds(name, getattr(self, name))
        for name in _RETENTIONS:
            check_retention(name, getattr(self, name))
        # Three times 0.2 is more than 0.6 in binary.
        if self.beat <= 0 or self.beat * 3 > self.lease * (1 + 1e-9):
            message = (
                f"the lease ({self.lease} s) must be at least three times the beat ({self.beat} s)"
            )
            raise BadOption(message)
        if self.grace < 0:
            message = f"the grace period must be 0 or more seconds, not {self.grace}"
            raise BadOption(message)

    @property
    def margin(self) -> float:
        """How long before the end of its lease a worker stops acting."""
        return min(LEASE_MARGIN_SECONDS, self.lease / 5)

    @property
    def served_queues(self) -> ServedQueues:
        """The queues that the worker serves."""
        return ServedQueues(tuple(name for name, _ in self.queues), self.exclude_queues)

    @property
    def claim_bounds(self) -> dict[str, Any]:
        """The limits on the worker's claims, in addition to its slots."""
        names = ("exclude_queues", "max_tasks", "process_limit", "one_slot", "carries")
        return {name: getattr(self, name) for name in names}

    @property
    def deadline_check_interval(self) -> float:
        """How often the worker's main thread checks its deadline. It is well within the margin."""
        return min(LOOK_SECONDS, self.margin / 2)

    @property
    def start_mark_count(self) -> int:
        """How many started bodies can be reported to the supervisor at once."""
        return self.concurrency + self.async_limit + 4 * CLAIM_BATCH


def worker_settings(base: WorkerSettings, **chosen: Any) -> WorkerSettings:  # noqa: ANN401
    """Return settings with some of them replaced, or raise BadOption for an unknown name.

    None leaves a setting unchanged. Queues are given as text.
    """
    known = [each.name for each in fields(WorkerSettings)]
    for name in chosen:
        if name not in known:
            message = f"a worker has no setting {name!r}; it has {', '.join(known)}"
            raise BadOption(message)
    given = {name: value for name, value in chosen.items() if value is not None}
    if "queues" in given:
        given["queues"] = parse_queues(given["queues"])
    if "exclude_queues" in given:
        given["exclude_queues"] = parse_names(given["exclude_queues"])
    if "include" in given:
        given["include"] = parse_modules(names_text(given["include"]))
    for name in given.keys() & set(_RETENTIONS):
        if isinstance(given[name], str):
            given[name] = retention_of(given[name])
    return replace(base, **given)


def names_text(value: object) -> str:
    """Return names as one text, which may also be given as a list."""
    return ",".join(map(_text, value)) if isinstance(value, (list, tuple)) else _text(value)


def parse_modules(text: str) -> tuple[str, ...]:
    """Return the modules in a text such as `shop.mail,shop.billing`."""
    modules = tuple(name for name in map(str.strip, text.split(",")) if name)
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            message = f"include must name modules, such as shop.tasks; {name!r} is not a module"
            raise BadOption(message)
    return modules


def parse_users(text: str | None) -> dict[str, str]:
    """Return the users and passwords in a text such as `ann:secret,bob:secret`."""
    pairs = dict(pair.partition(":")[::2] for pair in (text or "").split(",") if text)
    if not all(name and word for name, word in pairs.items()):
        # The text is not shown, because it contains passwords.
        raise BadOption(
            "dashboard_users (DULY_DASHBOARD_USERS) must have the form name:password,name:password"
        )
    return pairs


def parse_proxies(text: str | None) -> tuple[str, ...]:
    """Return the proxies in a text such as `127.0.0.1,10.0.0.0/8`: addresses and networks."""
    proxies = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise BadOption(
                "forwarded_allow_ips must list addresses and networks of proxies, such as "
                f"127.0.0.1,10.0.0.0/8: {error}"
            ) from None
    return proxies


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set from outside, checked as a whole.

    The docstring of `Duly` describes the settings that it takes.
    """

    url: str = field(default="sqlite:///duly.db", repr=False)
    app: str | None = None
    """The application that commands use, as module:attribute."""
    actor: str | None = None
    """The name recorded for operator actions. By default the user and the host of the process."""
    version: str | None = None
    concurrency: int = 10
    async_limit: int = 200
    process_limit: int | None = None
    processes: int = 1
    include: str = ""
    queues: str = ""
    exclude_queues: str = ""
    lease: float = LEASE_SECONDS
    beat: float = BEAT_SECONDS
    grace: float = GRACE_SECONDS
    retention: float = RETENTION_SECONDS
    dead_retention: float = DEAD_RETENTION_SECONDS
    act_retention: float = ACT_RETENTION_SECONDS
    log_level: str = "INFO"
    """The lowest level that workers log."""
    log_format: str = "text"
    """The format of workers' log lines: text or json."""
    dashboard_token: str | None = field(default=None, repr=False)
    """The token that gives access to the dashboard that `duly dashboard` serves."""
    dashboard_users: str | None = field(default=None, repr=False)
    """Names and passwords to log in there instead, at least 12 characters each: ann:…,bob:…."""
    dashboard_forwarded_allow_ips: str | None = None
    """Proxies whose X-Forwarded-For and X-Forwarded-Proto it trusts: 127.0.0.1,10.0.0.0/8."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The source of each setting that is not at its default."""

    def __post_init__(self) -> None:
        """Raise BadOption for values that cannot work."""
        if self.processes < 1:
            raise BadOption(f"processes must be at least 1, not {self.processes}")
        if self.log_level not in _LEVELS:
            raise BadOption(f"log_level must be one of {', '.join(_LEVELS)}, not {self.log_level}")
        if self.log_format not in _FORMATS:
            known = " or ".join(_FORMATS)
            raise BadOption(f"log_format must be {known}, not {self.log_format}")
        parse_users(self.dashboard_users)
        parse_proxies(self.dashboard_forwarded_allow_ips)
        self.worker()

    def worker(self) -> WorkerSettings:
        """Return the settings of one worker."""
        return WorkerSettings(
            concurrency=self.concurrency,
            async_limit=self.async_limit,
            process_limit=self.process_limit,
            include=parse_modules(self.include),
            queues=parse_queues(self.queues),
            exclude_queues=parse_names(self.exclude_queues),
            lease=self.lease,
            beat=self.beat,
            grace=self.grace,
            retention=self.retention,
            dead_retention=self.dead_retention,
            act_retention=self.act_retention,
            version=self.version,
        )

    def as_given(self) -> "Sourced":
        """Return the settings that are not at their defaults, each with its source."""
        return {name: (getattr(self, name), origin) for name, origin in self.origins.items()}

    def over(self, origin: str, **given: object) -> "Settings":
        """Return these settings with some of them replaced. None leaves a setting unchanged."""
        chosen = {name: (value, origin) for name, value in given.items() if value is not None}
        return check_settings({**self.as_given(), **chosen})


SECRETS = frozenset({"dashboard_token", "dashboard_users"})
"""The settings that are never shown."""

Sourced = Mapping[str, tuple[object, str]]
"""Settings as they were given, and their sources, by name."""


class AppOptions(TypedDict, total=False):
    """The options that `Duly(…)` takes in addition to the address of the store."""

    version: str
    concurrency: int
    async_limit: int
    process_limit: int
    processes: int
    include: str | Sequence[str]
    queues: str
    exclude_queues: str
    lease: float
    beat: float
    grace: float
    retention: float | str | None
    dead_retention: float | str | None
    act_retention: float | str | None


def load_settings(**given: object) -> Settings:
    """Return the settings: keywords override the environment, pyproject.toml and the defaults."""
    keywords = {
        name: (value, "keyword")
        for name, value in given.items()
        if value is not None or name in _RETENTIONS
    }
    return check_settings({**_from_project(), **_from_environment(), **keywords})


def check_settings(given: Sourced) -> Settings:
    """Check all given settings together: a lease and a heartbeat from two sources must fit."""
    chosen = {name: _checked(name, *sourced) for name, sourced in given.items()}
    origins = {name: origin for name, (_, origin) in given.items()}
    return Settings(**chosen, origins=origins)  # type: ignore[arg-type]  # _checked did


def store_url(given: str | None) -> str:
    """Return the given address of the store, or else the address in the settings."""
    return given or load_settings().url


# -- sources --


def _from_environment() -> Sourced:
    return {
        variable.removeprefix(PREFIX).lower(): (text, variable)
        for variable, text in os.environ.items()
        if variable.startswith(PREFIX) and text and not _OTHERS.match(variable)
    }


def _from_project() -> Sourced:
    """Return the table of the nearest pyproject.toml, in this directory or one above it."""
    file, table = read_project()
    return {name: (value, file) for name, value in table.items()}


# -- types --


def _checked(name: str, value: object, origin: str) -> object:
    """Return a setting converted to its type, or raise BadOption with its source."""
    if name not in _READERS:
        raise _unknown(name, origin)
    try:
        return _READERS[name](value)
    except (TypeError, ValueError) as error:
        # The address of a database may contain a password.
        shown = REDACTED if name in SECRETS | {"url"} else repr(value)
        raise BadOption(f"{name} ({origin}) cannot be {shown}: {error}") from error


def _unknown(name: str, origin: str) -> BadOption:
    is_variable = origin.startswith(PREFIX)
    said = origin if is_variable else f"{name!r} ({origin})"
    meant = nearest(name, _READERS)
    if meant is None:
        return BadOption(f"there is no setting {said}; the settings are {', '.join(_READERS)}")
    shown = PREFIX + meant.upper() if is_variable else repr(meant)
    return BadOption(f"there is no setting {said}; did you mean {shown}?")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it must be a string")
    return value


def _whole(value: object) -> int:
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("it must be a whole number")
    return value


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_FORMATS = ("text", "json")
_OF_TYPE: dict[object, Callable[[object], object]] = {
    str: _text,
    str | None: _text,
    int: _whole,
    int | None: _whole,
    float: read_seconds,
}
_READERS = {each.name: _OF_TYPE[each.type] for each in fields(Settings) if each.name != "origins"}
_READERS |= dict.fromkeys(_RETENTIONS, retention_of)
_READERS |= {"include": names_text, "url": lambda value: without_driver(_text(value))}
