"""Speaks with the kernels' test driver: commands in, arrays out (kernels/tests/driver.cc has the protocol)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from kernel_builds import Build


class Refused(Exception):
    """The library answered with an error; its text is the message."""


Command = tuple[str, bytes]


def command(line: str, *payload: bytes) -> Command:
    return line, b"".join(payload)


class Driver:
    """One way of starting a driver. Each `run` is a process of its own."""

    def __init__(self, build: Build, limit_s: float = 300) -> None:
        self.build = build
        self.limit_s = limit_s

    def run(self, commands: Iterable[Command]) -> list[bytes | Refused]:
        """The answers to all commands, in order. A driver that ends otherwise fails the test with what it said."""
        given = list(commands)
        sent = b"".join(line.encode() + b"\n" + payload for line, payload in given)
        done = subprocess.run(
            self.build.driver_command, input=sent, capture_output=True, check=False, timeout=self.limit_s
        )
        assert done.returncode == 0, f"status {done.returncode}:\n{done.stderr.decode(errors='replace')[-6000:]}"
        answers = list(_answers(done.stdout))
        assert len(answers) == len(given)
        return answers

    def results(self, commands: Iterable[Command]) -> list[bytes]:
        """The same where no command may be refused."""
        results = []
        for answer in self.run(commands):
            if isinstance(answer, Refused):
                raise answer
            results.append(answer)
        return results

    def isas(self) -> list[str]:
        return self.results([command("isas")])[0].decode().split()


def _answers(output: bytes) -> Iterable[bytes | Refused]:
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        word, _, rest = output[at:end].partition(b" ")
        at = end + 1
        if word == b"ok":
            size = int(rest)
            yield output[at : at + size]
            at += size
        else:
            yield Refused(rest.decode())
