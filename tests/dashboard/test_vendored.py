"""Vendored files are unchanged, licensed and small."""

import gzip
import hashlib
from pathlib import Path

import duly.dashboard

STATIC = Path(duly.dashboard.__file__).parent / "static"
VENDOR = STATIC / "vendor"
FILES = [file for file in VENDOR.iterdir() if file.suffix in {".js", ".css"}]
MOST_BYTES = 60_000


def test_vendored_files_are_unchanged():
    sums = dict(line.split()[::-1] for line in (VENDOR / "SHA256SUMS").read_text().splitlines())

    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in FILES}


def test_vendored_files_come_with_their_licences_and_versions():
    versions = (VENDOR / "VERSIONS").read_text()

    for file in FILES:
        assert file.name in versions
        name = file.name.partition(".")[0].removesuffix("-ext")
        assert (VENDOR / f"{name}.LICENSE").exists(), name


def test_the_files_that_a_page_loads_are_small():
    files = [*STATIC.glob("*.*"), *FILES]

    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= MOST_BYTES
