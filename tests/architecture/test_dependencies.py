"""The oldest versions of duly's dependencies, and the audit of their vulnerabilities."""

import re
import tomllib

import pytest

from tests.docs.pages import ROOT
from tools import audit, floors

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_names_its_oldest_version():
    oldest = floors.floors_of(PROJECT)

    assert {"click", "starlette", "django", "redis"} <= oldest.keys()
    assert oldest["starlette"] == "starlette==1.3.1"
    assert oldest["celery"].startswith("celery[redis]==")


def test_the_error_for_a_dependency_without_an_oldest_version_names_it():
    with pytest.raises(SystemExit, match="'rich' names no oldest version"):
        floors.floors_of({"dependencies": ["rich"], "optional-dependencies": {"dev": []}})


def test_the_extras_and_the_development_tools_have_the_same_oldest_versions():
    extras = dict(PROJECT["optional-dependencies"])
    dev = dict(map(_name_and_floor, filter(lambda each: ">=" in each, extras.pop("dev"))))
    own = dict(_name_and_floor(each) for given in extras.values() for each in given)

    assert {name: own[name] for name in own.keys() & dev.keys()} == {
        name: dev[name] for name in own.keys() & dev.keys()
    }


def _name_and_floor(requirement):
    return re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement).groups()


def test_an_audit_names_vulnerable_packages_and_fails(monkeypatch, capsys):
    report = {
        "dependencies": [
            {"name": "here", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]},
            {"name": "there", "version": "3", "vulns": []},
            {"name": "unknown", "skip_reason": "not found"},
        ]
    }
    verdict = audit.verdict_of(report)
    monkeypatch.setattr(audit, "ask", {"a.txt": verdict, "b.txt": None}.get)

    assert verdict == (2, ["here 1: PYSEC-1, fixed in 2"], True)
    assert audit.main(["a.txt", "b.txt"]) == 1
    assert "a.txt has known vulnerabilities: here 1" in capsys.readouterr().out


def test_an_audit_names_a_vulnerability_without_a_fix_and_succeeds(monkeypatch, capsys):
    flaw = {"id": "PYSEC-1", "fix_versions": []}
    report = {"dependencies": [{"name": "here", "version": "1", "vulns": [flaw]}]}
    monkeypatch.setattr(audit, "ask", lambda _: audit.verdict_of(report))

    assert audit.main(["a.txt"]) == 0
    assert "here 1: PYSEC-1, fixed in no version yet" in capsys.readouterr().out


def test_an_audit_without_its_data_succeeds(monkeypatch, capsys):
    monkeypatch.setattr(audit, "ask", lambda _: None)

    assert audit.main(["a.txt"]) == 0
    assert "could not be audited" in capsys.readouterr().out
