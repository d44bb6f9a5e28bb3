"""scripts/onnxruntime-headers: headers from this Debian's archive or the next one's, with an apt of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "onnxruntime-headers"
HEADER = "onnxruntime_c_api.h"

# Answers like apt-get: knows one archive, and in SUITE the package. What it was asked is in $FAKE/asked, with the
# sources that it was given.
APT_GET = """
printf '%s\\n' "apt-get $*" >>"$FAKE/asked"
for word; do
  case $word in Dir::Etc::sourcelist=*) sources=${word#*=} ;; esac
done
case " $* " in
  *' indextargets '*)
    printf 'deb http://mirror.test/debian %s main\\n' $LISTED
    ;;
  *' update '*) cat "$sources" >>"$FAKE/sources"; exit "${UPDATE_STATUS:-0}" ;;
  *' download '*)
    if [ -n "${DOWNLOAD_STATUS:-}" ]; then exit "$DOWNLOAD_STATUS"; fi
    touch libonnxruntime-dev_1.21.0_any.deb
    ;;
esac
"""
APT_CACHE = """
for word; do
  case $word in Dir::Etc::sourcelist=*) sources=${word#*=} ;; esac
done
if grep -q -F " $SUITE " "$sources"; then echo 'libonnxruntime-dev | 1.21.0'; fi
"""
DPKG_DEB = """
for word; do folder=$word; done
mkdir -p "$folder/usr/include/onnxruntime"
for name in onnxruntime_c_api.h onnxruntime_cxx_api.h; do
  echo "/* $name */" >"$folder/usr/include/onnxruntime/$name"
done
"""


class Debian:
    """Fake commands before the real ones, for a system whose archive has certain suites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = folder / "commands"
        self.commands.mkdir()
        for name, body in {"apt-get": APT_GET, "apt-cache": APT_CACHE, "dpkg-deb": DPKG_DEB}.items():
            (self.commands / name).write_text(f"#!/bin/sh\n{body}")
            (self.commands / name).chmod(0o755)
        self.headers = folder / "headers"
        lines = Path("/etc/os-release").read_text().splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        self.codename = values.get("VERSION_CODENAME", "").strip('"')

    def run(self, *arguments: str, suite: str = "trixie", listed: str | None = None, **given: str) -> tuple[int, str]:
        """Exit status and all that was said. `suite` has the package; apt lists those in `listed`."""
        codename = self.codename
        environment = {
            **os.environ,
            "PATH": f"{self.commands}:{os.environ['PATH']}",
            "FAKE": str(self.folder),
            "SUITE": suite,
            "LISTED": f"{codename} {codename}-updates {codename}-security" if listed is None else listed,
            **given,
        }
        done = subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def sources(self) -> list[str]:
        """The lines of sources of all updates, in order."""
        file = self.folder / "sources"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def debian(tmp_path: Path) -> Debian:
    made = Debian(tmp_path)
    if not made.codename:
        pytest.skip("this system's release has no code name")
    return made


def test_a_debian_that_has_the_package_gives_it(debian: Debian) -> None:
    status, said = debian.run(str(debian.headers), suite=debian.codename)
    assert status == 0, said
    assert sorted(file.name for file in debian.headers.iterdir()) == [HEADER, "onnxruntime_cxx_api.h"]
    assert (debian.headers / HEADER).read_text() == f"/* {HEADER} */\n"
    assert debian.sources() == [f"deb http://mirror.test/debian {debian.codename} main"]


def test_an_older_debian_takes_the_package_of_the_first_that_has_it_from_its_own_mirror(debian: Debian) -> None:
    if debian.codename == "trixie":
        pytest.skip("this is the first Debian that has it")
    status, said = debian.run(str(debian.headers))
    assert status == 0, said
    assert debian.sources()[-1] == "deb http://mirror.test/debian trixie main"
    assert (debian.headers / HEADER).is_file()


def test_nothing_of_the_system_is_asked_to_change(debian: Debian) -> None:
    debian.run(str(debian.headers))
    for line in (debian.folder / "asked").read_text().splitlines():
        assert "indextargets" in line or (
            (" update" in line or " download " in line)
            and all(f"Dir::{name}=" in line for name in ("State::lists", "Cache::archives", "Etc::sourcelist"))
        ), line


def test_headers_that_are_there_are_left_alone(debian: Debian) -> None:
    debian.headers.mkdir()
    (debian.headers / HEADER).write_text("mine")
    status, said = debian.run(str(debian.headers))
    assert status == 0
    assert "already" in said
    assert (debian.headers / HEADER).read_text() == "mine"
    assert not (debian.folder / "asked").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"listed": ""}, "apt knows no archive"),
        ({"suite": "none"}, "has libonnxruntime-dev"),
        ({"UPDATE_STATUS": "100"}, "could not read the archive"),
        ({"DOWNLOAD_STATUS": "100"}, "could not be fetched"),
    ],
)
def test_what_goes_wrong_is_said_and_no_header_appears(debian: Debian, given: dict[str, str], said: str) -> None:
    status, text = debian.run(str(debian.headers), **given)
    assert status == 1
    assert "error: " in text
    assert said in text
    assert not (debian.headers / HEADER).exists()
    # A later run does what this one could not.
    assert debian.run(str(debian.headers))[0] == 0
    assert (debian.headers / HEADER).is_file()


@pytest.mark.parametrize("arguments", [[], ["--unknown"]])
def test_without_a_folder_it_says_what_it_needs(debian: Debian, arguments: list[str]) -> None:
    status, said = debian.run(*arguments)
    assert status == 1
    assert "a folder for the headers is needed" in said
