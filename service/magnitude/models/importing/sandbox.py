"""Running one job on an untrusted file in a child process with bounded memory and time.

The child limits itself before it reads anything: private memory (`RLIMIT_DATA`), CPU time, no core dump, no new
privileges, and it dies with its parent. Files that are mapped read-only do not count, so weights larger than the
limit can be read through a mapping. The job's answer and its progress come back as JSON lines over a pipe.
"""

from __future__ import annotations

import ctypes
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

from magnitude.errors import ImportFailed, ModelError

# A line is a progress note or the manifest: kilobytes. More means that the child is broken.
_MAX_LINE_BYTES = 16 * 1024 * 1024
# What the child last wrote to stderr is kept for the error; libraries that crash say why there.
_STDERR_KEPT_BYTES = 4096

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one job. `data_bytes` bounds heap and private mappings, threads' stacks included."""

    data_bytes: int
    cpu_s: int
    wall_s: float


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """`fraction` of the whole job that is done, between 0 and 1, and what is being done now."""

    fraction: float
    text: str


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The job's result, as JSON."""

    value: msgspec.Raw


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """The job raised a `MagnitudeError`."""

    message: str
    hint: str = ""
    param: str | None = None


Report = Progress | Answer | Refusal
_reports = msgspec.json.Decoder(Report)


def confine(limits: Limits) -> None:
    """Apply `limits` to this process, for good. Called by the child before it touches the file."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_PDEATHSIG, int(signal.SIGKILL))):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise ImportFailed(
                f"the import could not confine itself (prctl {option}: {os.strerror(ctypes.get_errno())})",
                hint="Linux 3.5 or newer is needed",
            )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # SIGXCPU at the soft limit says what happened; the hard one, a little later, is for a child that ignores it.
    bounds = ((resource.RLIMIT_DATA, limits.data_bytes, 0), (resource.RLIMIT_CPU, limits.cpu_s, 5))
    for what, value, grace in bounds:
        _, hard = resource.getrlimit(what)
        most = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
        resource.setrlimit(what, (min(value, most), most))


class Reporter:
    """The child's end of the pipe."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    def send(self, report: Report) -> None:
        self._pipe.write(msgspec.json.encode(report) + b"\n")
        self._pipe.flush()

    def progress(self, fraction: float, text: str) -> None:
        self.send(Progress(fraction=min(1.0, max(0.0, fraction)), text=text))


def run_confined(
    module: str, job: msgspec.Struct, *, limits: Limits, what: str, progress: Callable[[Progress], None]
) -> bytes:
    """Run `python -m module` with `job` and `limits` as JSON on its standard input; returns the answer's JSON.

    `what` names the file for errors. Raises `ImportFailed` when the job refuses, dies, is silent or too slow.
    The child is gone when this returns, whichever way.
    """
    read_end, write_end = os.pipe()
    order = msgspec.json.encode({"limits": limits, "job": job, "report_fd": write_end})
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", module],  # -P: a module in the working folder is never taken for ours
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(write_end,),
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    try:
        answer, stderr, in_time = _listen(child, read_end, order, limits, progress)
    finally:
        os.close(read_end)
        if child.poll() is None:
            child.kill()
        child.wait()
    if isinstance(answer, Answer):
        return bytes(answer.value)
    if isinstance(answer, Refusal):
        raise ImportFailed(answer.message, hint=answer.hint, param=answer.param)
    if not in_time:
        raise ImportFailed(
            f"{what}: the import took more than {limits.wall_s:.0f} s and was stopped",
            hint="The file is damaged, or the machine too slow for it; import it on a faster one and copy the folder",
            param=what,
        )
    raise death(child.returncode, stderr, what, limits)


def death(returncode: int, stderr: str, what: str, limits: Limits) -> ImportFailed:
    """The error for a child that ended without an answer. `returncode` is Popen's: negative for a signal."""
    last = stderr.strip().splitlines()[-1][:300] if stderr.strip() else ""
    said = f" Its last words: {last}" if last else ""
    if returncode == -signal.SIGILL:
        return ImportFailed(
            f"{what}: the import met an instruction that this CPU does not have (SIGILL)",
            hint="The installed onnxruntime wheel does not fit this CPU; install one that does, "
            "or import on another machine and copy the folder",
            param=what,
        )
    if returncode == -signal.SIGXCPU:
        return ImportFailed(
            f"{what}: the import used more than {limits.cpu_s} s of CPU time and was stopped",
            hint="The file is damaged, or the machine too slow for it; import it on a faster one and copy the folder",
            param=what,
        )
    if returncode == -signal.SIGKILL:
        return ImportFailed(
            f"{what}: the import was killed (SIGKILL), most likely because memory ran out",
            hint="Close other programs, use a machine with more memory, or import with fewer bits",
            param=what,
        )
    if returncode < 0:
        name = signal.Signals(-returncode).name if -returncode in list(signal.Signals) else str(-returncode)
        return ImportFailed(
            f"{what}: the import crashed ({name}).{said}",
            hint="The file is damaged, or a library cannot cope with it; check its sha256 or fetch it again",
            param=what,
        )
    return ImportFailed(
        f"{what}: the import ended with status {returncode} and no answer.{said}",
        hint="Check the file's sha256, or fetch it again",
        param=what,
    )


def _listen(
    child: subprocess.Popen[bytes], read_end: int, order: bytes, limits: Limits, progress: Callable[[Progress], None]
) -> tuple[Answer | Refusal | None, str, bool]:
    """Feed the child its order, pass progress on, and give back its answer, stderr's end, and whether in time."""
    assert child.stdin is not None
    assert child.stderr is not None
    try:
        child.stdin.write(order)
        child.stdin.close()
    except BrokenPipeError:
        pass  # it died at once; its status tells why
    deadline_s = time.monotonic() + limits.wall_s
    stderr = b""
    lines = b""
    answer: Answer | Refusal | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(read_end, selectors.EVENT_READ, "report")
        selector.register(child.stderr, selectors.EVENT_READ, "stderr")
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return answer, stderr.decode(errors="replace"), False
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.data == "stderr":
                    stderr = (stderr + data)[-_STDERR_KEPT_BYTES:]
                else:
                    lines += data
                    *whole, lines = lines.split(b"\n")
                    if len(lines) > _MAX_LINE_BYTES:
                        return None, "it reported a line without end", True
                    for line in whole:
                        report = _decode(line)
                        if isinstance(report, Progress):
                            progress(report)
                        elif report is not None:
                            answer = report
        child.wait(max(0.1, deadline_s - time.monotonic()))
    return answer, stderr.decode(errors="replace"), True


def _decode(line: bytes) -> Report | None:
    try:
        return _reports.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # the child is not trusted; without an answer its end becomes the error


class _Order(msgspec.Struct, frozen=True):
    limits: Limits
    job: msgspec.Raw
    report_fd: int


def serve(run: Callable[[bytes, Reporter], Any]) -> int:
    """The child's main: confine, run the job, report. Returns the exit status."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    with os.fdopen(order.report_fd, "wb") as pipe:
        reporter = Reporter(pipe)
        reporter.send(_outcome(order, run, reporter))
    return 0


def _outcome(order: _Order, run: Callable[[bytes, Reporter], Any], reporter: Reporter) -> Answer | Refusal:
    try:
        confine(order.limits)
        return Answer(value=msgspec.Raw(msgspec.json.encode(run(bytes(order.job), reporter))))
    except ModelError as error:
        return Refusal(message=error.message, hint=error.hint, param=error.param)
    except MemoryError:
        return Refusal(
            message=f"the import needs more than the {order.limits.data_bytes >> 20} MiB of memory it may use",
            hint="Close other programs, use a machine with more memory, or import with fewer bits",
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in a native parser is no Exception
        return Refusal(
            message=f"the import failed: {type(error).__name__}: {str(error)[:500]}",
            hint="The file is damaged or of a kind that is not supported; check its sha256 or fetch it again",
        )
