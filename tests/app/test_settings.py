"""Settings: their sources, the order of the sources, and invalid settings."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from duly import BadOption, Duly
from duly.core.amounts import FOREVER, seconds_of
from duly.settings import load_settings, worker_settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, without duly variables in the environment."""
    for name in [name for name in os.environ if name.startswith("DULY_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_project(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text)
    return file


def test_settings_have_defaults():
    settings = load_settings()

    assert (settings.url, settings.concurrency, settings.origins) == ("sqlite:///duly.db", 10, {})


def test_keywords_override_the_environment_and_the_environment_overrides_the_project(
    folder, monkeypatch
):
    file = write_project(folder, "[tool.duly]\nconcurrency = 2\nasync-limit = 3\ngrace = '1m'\n")
    monkeypatch.setenv("DULY_CONCURRENCY", "4")
    monkeypatch.setenv("DULY_ASYNC_LIMIT", "5")

    app = Duly(concurrency=6)

    settings = app.settings
    assert (settings.concurrency, settings.async_limit, settings.grace) == (6, 5, 60.0)
    assert settings.origins == {
        "grace": str(file),
        "async_limit": "DULY_ASYNC_LIMIT",
        "concurrency": "keyword",
    }


def test_a_path_in_the_project_file_does_not_depend_on_the_current_folder(folder, monkeypatch):
    write_project(folder, "[tool.duly]\nurl = 'sqlite:///data/shop.db'\n")
    below = folder / "scripts" / "nightly"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    assert load_settings().url == f"sqlite:///{folder}/data/shop.db"


def test_the_search_stops_at_the_nearest_project_even_without_settings(folder, monkeypatch):
    write_project(folder, "[tool.duly]\nconcurrency = 2\n")
    inner = folder / "inner"
    inner.mkdir()
    write_project(inner, "[project]\nname = 'inner'\n")
    monkeypatch.chdir(inner)

    assert load_settings().concurrency == 10


@pytest.mark.parametrize(
    "name",
    [
        "DULY_TEST_POSTGRES",
        "DULY_SERVICE_HOST",
        "DULY_PORT_80_TCP",
        "DULY_WEB_SERVICE_HOST",
        "DULY_WEB_SERVICE_PORT",
        "DULY_WEB_SERVICE_PORT_HTTP",
        "DULY_WEB_PORT",
        "DULY_WEB_PORT_8000_TCP",
        "DULY_WEB_PORT_8000_TCP_ADDR",
        "DULY_DASHBOARD_PORT_53_UDP_PROTO",
    ],
)
def test_environment_variables_of_other_programs_are_ignored(name, monkeypatch):
    monkeypatch.setenv(name, "x")

    assert load_settings().origins == {}


def test_the_error_for_an_unknown_setting_suggests_the_nearest_known_name(folder, monkeypatch):
    with pytest.raises(BadOption, match=r"'concurency' \(keyword\); did you mean 'concurrency'"):
        Duly(concurency=3)
    with pytest.raises(BadOption, match=r"there is no setting 'xyz' .*; the settings are url, app"):
        Duly(xyz=3)
    write_project(folder, "[tool.duly]\nleese = 3\n")
    with pytest.raises(BadOption, match=r"'leese' \(.*pyproject.toml\); did you mean 'lease'"):
        Duly()
    monkeypatch.setenv("DULY_URI", "sqlite:///x.db")
    (folder / "pyproject.toml").unlink()
    with pytest.raises(BadOption, match="no setting DULY_URI; did you mean DULY_URL"):
        Duly()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": "many"}, "concurrency .* cannot be 'many': it must be a whole number"),
        ({"concurrency": 0}, "at least 1"),
        ({"processes": 0}, "at least 1"),
        ({"lease": 9, "beat": 5}, "beat"),
        ({"grace": "soon"}, "not a duration"),
        ({"grace": True}, "must be a number of seconds"),
        ({"queues": ":"}, "name:limit"),
        ({"url": 3}, "must be a string"),
        ({"log_level": "LOUD"}, "one of DEBUG"),
        ({"log_format": "xml"}, "text or json"),
        ({"dashboard_users": "ann"}, "name:password"),
        ({"dashboard_forwarded_allow_ips": "proxy"}, "addresses and networks of proxies"),
    ],
)
def test_an_invalid_setting_is_refused_immediately(given, words):
    with pytest.raises(BadOption, match=words):
        load_settings(**given)


def test_a_lease_and_a_beat_from_two_sources_are_checked_together(folder, monkeypatch):
    write_project(folder, "[tool.duly]\nlease = 3\n")
    with pytest.raises(BadOption, match="beat"):
        load_settings()
    monkeypatch.setenv("DULY_BEAT", "1")

    assert load_settings().worker().lease == 3


def test_a_project_file_with_invalid_toml_is_refused(folder):
    write_project(folder, "[tool.duly\n")

    with pytest.raises(BadOption, match=r"pyproject.toml cannot be read"):
        load_settings()


@pytest.mark.parametrize(
    "spoil", [lambda file: file.write_bytes(b"\xff"), lambda file: file.mkdir()]
)
def test_a_project_file_that_is_not_text_is_refused(folder, spoil):
    spoil(folder / "pyproject.toml")

    with pytest.raises(BadOption, match=r"pyproject.toml cannot be read"):
        Duly()


def test_a_deleted_folder_has_no_project(folder, monkeypatch):
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert load_settings().origins == {}


@pytest.mark.parametrize("name", ["dashboard_token", "dashboard_users"])
def test_secrets_are_not_shown(name):
    with pytest.raises(BadOption) as refused:
        load_settings(**{name: ["s3cret"]})

    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(load_settings(**{name: "ann:s3cret"}))


def test_durations_have_units():
    assert [seconds_of(text) for text in ("90", "1.5s", "15m", "24h", "7d", "2w")] == [
        90,
        1.5,
        900,
        86_400,
        604_800,
        1_209_600,
    ]


def test_a_retention_can_be_forever(folder, monkeypatch):
    monkeypatch.setenv("DULY_DEAD_RETENTION", "forever")

    found = load_settings(retention=None, act_retention="90d")

    assert (found.retention, found.dead_retention) == (FOREVER, FOREVER)
    assert found.act_retention == 90 * 86_400
    assert found.worker().retention == FOREVER
    assert worker_settings(found.worker(), retention="1h").retention == 3_600


@pytest.mark.parametrize("name", ["retention", "dead_retention", "act_retention"])
@pytest.mark.parametrize("wrong", [-1, "-1d", "never", float("nan"), True])
def test_an_invalid_retention_is_refused(folder, name, wrong):
    with pytest.raises(BadOption, match=name):
        load_settings(**{name: wrong})


@pytest.mark.parametrize("wrong", [-1, "-1d", "never", timedelta(days=-1), True, object()])
def test_an_invalid_retention_of_a_task_is_refused(wrong):
    with pytest.raises(BadOption):
        Duly().task(retention=wrong)(print_nothing)


def print_nothing() -> None:
    """Do nothing."""


def test_a_task_has_a_retention_of_its_own():
    app = Duly()
    for number, given in enumerate([60, "2d", timedelta(hours=1), "forever", None]):
        app.task(name=f"t{number}", retention=given)(print_nothing)

    kept = app.registry.retentions()

    assert kept == {"t0": 60.0, "t1": 2 * 86_400, "t2": 3_600.0, "t3": FOREVER}
