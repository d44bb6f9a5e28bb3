"""One archive with what somebody needs who helps from afar, and nothing of what people said to the models.

Each part is gathered on its own: one that fails leaves a line that says why in its place. Everything passes the
redaction on its way in.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from magnitude.board.boot import Clocks, age_s
from magnitude.board.cpu import read_cpu
from magnitude.board.memory import effective_memory
from magnitude.board.roots import read_text
from magnitude.board.storage import storage_of
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.redaction import Redactor
from magnitude.doctor.running import run_checks
from magnitude.feedback import record_table
from magnitude.feedback.bundles import FOLDER, BundleRefused, read_all, without_content
from magnitude.feedback.history import lately
from magnitude.feedback.record_file import reading
from magnitude.feedback.recorder import RECORDS_FILE, program_versions
from magnitude.feedback.timeline import timeline_of
from magnitude.persist import MAX_STATE_BYTES, fault_of, write_atomic

# Newest rows of tasks: a busy day of an agent, 350 kB before compression.
ROWS = 500
# How far back decisions are looked for: what is reported today began yesterday.
DECISIONS_S = 2 * 86400.0
JOURNAL_LINES = 3000
# Any part is cut here: an archive must fit into a mail.
MAX_PART_BYTES = 2 * 1024 * 1024
COMMAND_S = 20.0
UNITS = ("magnitude.service", "magnitude.socket")
# What systemd knows of a unit that helps, and that cannot hold a secret (as `Environment=` can).
_UNIT_FACTS = (
    *("Id", "LoadState", "UnitFileState", "ActiveState", "SubState", "Result", "StatusText", "StatusErrno"),
    *("NRestarts", "ExecMainStatus", "ExecMainCode", "ExecMainStartTimestamp", "ActiveEnterTimestamp"),
    *("MemoryCurrent", "MemoryPeak", "MemoryHigh", "MemoryMax", "MemorySwapMax", "TasksCurrent"),
    *("CPUQuotaPerSecUSec", "WatchdogUSec", "NFileDescriptorStore", "FragmentPath", "DropInPaths"),
)
FOLDER_IN_ARCHIVE = "magnitude-support"

Ask = Callable[[str], str]


class SupportContext(msgspec.Struct, frozen=True, kw_only=True):
    """`ask(path)` is the answer of the running service; None where none runs, and `silence` says why.
    `search_path` is where systemd's programs are looked for, `environ` what may hold keys."""

    doctor: DoctorContext
    ask: Ask | None = None
    silence: str = ""
    search_path: str = os.defpath
    environ: dict[str, str] = {}
    clocks: Clocks


def collect(context: SupportContext) -> dict[str, str]:
    """The archive's files by name, redacted."""
    redactor = Redactor(_secrets(context))
    files: dict[str, str] = {}
    notes: list[str] = []
    for name, gather in _PARTS.items():
        try:
            text = gather(context, redactor)
        except Exception as error:  # whatever is broken on that machine: the other parts are wanted all the more
            text = f"could not be gathered: {type(error).__name__}: {redactor.text(str(error))}\n"
            notes.append(f"{name} could not be gathered")
        if len(text) > MAX_PART_BYTES:
            text = f"(the first {len(text) - MAX_PART_BYTES} characters were cut off)\n{text[-MAX_PART_BYTES:]}"
        files[name] = text
    for name, text in _bundles(context, redactor):
        files[name] = text
    if context.ask is None:
        notes.append(f"the service did not answer: {redactor.text(context.silence)}")
    files["README.txt"] = _readme(files, notes)
    return files


def write_archive(path: Path, files: dict[str, str], wall_s: float) -> None:
    """A tar.gz that only its owner can read, in place of whatever has that name. Raises `OSError`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            data = text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{FOLDER_IN_ARCHIVE}/{name}")
            member.size, member.mtime, member.mode = len(data), int(wall_s), 0o600
            archive.addfile(member, io.BytesIO(data))
    # A new file: in one that lies there already, or behind a link, somebody else could read along.
    write_atomic(path, packed.getvalue(), mode=0o600)


# --- the parts ---


def _versions(context: SupportContext, redactor: Redactor) -> str:
    packages = {}
    for requirement in importlib.metadata.requires("magnitude") or []:
        name = requirement.split(";")[0].split(">")[0].split("[")[0].split("=")[0].split("<")[0].strip()
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return _json({**program_versions(), "packages": packages}, redactor)


def _board(context: SupportContext, redactor: Redactor) -> str:
    roots = context.doctor.roots
    release = read_text(Path("/etc/os-release")) or ""
    facts = {
        "model": (read_text(roots.proc / "device-tree/model") or "").strip("\0"),
        "os": dict(line.split("=", 1) for line in release.splitlines() if line.startswith(("NAME=", "VERSION="))),
        "load": read_text(roots.proc / "loadavg"),
        "uptime": read_text(roots.proc / "uptime"),
        "pressure": {what: read_text(roots.proc / "pressure" / what) for what in ("cpu", "memory", "io")},
        "cpu": read_cpu(roots),
        "memory": effective_memory(roots),
        "storage": storage_of(context.doctor.paths.state),
        "clock": context.clocks.now(),
    }
    return _json(facts, redactor)


def _configuration(context: SupportContext, redactor: Redactor) -> str:
    doctor = context.doctor
    if doctor.config_error is not None:
        return redactor.text(f"not usable: {doctor.config_error}\n")
    settings = redactor.tree(msgspec.to_builtins(doctor.settings))
    said = "".join(
        f"# {line}\n" for line in (f"read from: {', '.join(doctor.config_files) or 'no file'}", *doctor.notices)
    )
    return said + _yaml(settings)


def _findings(context: SupportContext, redactor: Redactor) -> str:
    return _json(run_checks(context.doctor), redactor)


def _state(context: SupportContext, redactor: Redactor) -> str:
    return _asked(context, redactor, "/v1/magnitude/state")


def _metrics(context: SupportContext, redactor: Redactor) -> str:
    return _asked(context, redactor, "/metrics")


def _records(context: SupportContext, redactor: Redactor) -> str:
    if context.ask is not None:
        return _asked(context, redactor, f"/v1/magnitude/records?limit={ROWS}")
    with reading(context.doctor.paths.state / RECORDS_FILE) as connection:
        rows, counts = record_table.recent(connection, ROWS), record_table.counts(connection)
    return _json({"data": rows, "counts": counts}, redactor)


def _timeline(context: SupportContext, redactor: Redactor) -> str:
    if context.ask is not None:
        return _asked(context, redactor, f"/v1/magnitude/timeline?since_s={DECISIONS_S:.0f}&limit={ROWS}")
    now = context.clocks.now()
    with reading(context.doctor.paths.state / RECORDS_FILE) as connection:
        history = lately(record_table.decisions(connection), (), now, DECISIONS_S, ROWS)
    return _json(timeline_of(history, DECISIONS_S), redactor)


def _state_files(context: SupportContext, redactor: Redactor) -> str:
    """Names, sizes and soundness of what is persisted; of saved conversations only how many there are."""
    folder = context.doctor.paths.state
    now = context.clocks.now()
    lines = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if parts[0] in ("models", "kv") or path.is_symlink() or not path.is_file():
            continue
        status = path.stat()
        line = f"{'/'.join(parts)}: {status.st_size} bytes, mode {status.st_mode & 0o7777:04o}"
        written = now.wall_s - status.st_mtime
        line += f", written {written:.0f} s ago" if written >= 0 else ", written in the future"
        if path.suffix in (".json", ".bak"):
            with path.open("rb") as file:
                fault = fault_of(file.read(MAX_STATE_BYTES))
            line += f", {fault or 'sound'}"
        lines.append(line)
    saved = list((folder / "kv").glob("*.kv"))
    lines.append(f"kv: {len(saved)} saved conversations, {sum(path.stat().st_size for path in saved)} bytes")
    return redactor.text("\n".join(lines) + "\n")


def _units(context: SupportContext, redactor: Redactor) -> str:
    facts = [f"--property={name}" for name in _UNIT_FACTS]
    return redactor.text(_command(context, "systemctl", "show", "--no-pager", *facts, *UNITS))


def _journal(context: SupportContext, redactor: Redactor) -> str:
    units = [argument for unit in UNITS for argument in ("--unit", unit)]
    return redactor.log(
        _command(
            context,
            "journalctl",
            *units,
            f"--lines={JOURNAL_LINES}",
            "--no-pager",
            "--no-hostname",
            "--output=short-iso-precise",
        )
    )


_PARTS: dict[str, Callable[[SupportContext, Redactor], str]] = {
    "versions.json": _versions,
    "board.json": _board,
    "configuration.yaml": _configuration,
    "doctor.json": _findings,
    "state.json": _state,
    "metrics.txt": _metrics,
    "records.json": _records,
    "timeline.json": _timeline,
    "state-files.txt": _state_files,
    "units.txt": _units,
    "journal.txt": _journal,
}


def _bundles(context: SupportContext, redactor: Redactor) -> Iterator[tuple[str, str]]:
    try:
        for entry in read_all(context.doctor.paths.state / FOLDER):
            if isinstance(entry, BundleRefused):
                yield "failures/broken.txt", redactor.text(f"{entry.message}\n")
                continue
            bundle = without_content(entry)
            said = msgspec.to_builtins(bundle)
            said["last_lines"] = redactor.log("\n".join(bundle.last_lines)).splitlines()
            ago = age_s(bundle.stamp, context.clocks.now())
            yield f"failures/{bundle.bundle_id}.json", _json({"ago_s": ago, **said}, redactor)
    except OSError as error:
        yield "failures/unreadable.txt", redactor.text(f"{error}\n")


# --- inside ---


def _secrets(context: SupportContext) -> Iterator[str]:
    for key in context.doctor.settings.server.api_keys:
        yield key.sha256
    for name, value in context.environ.items():
        if any(word in name.upper() for word in ("KEY", "SECRET", "TOKEN", "PASSWORD")):
            yield value


def _asked(context: SupportContext, redactor: Redactor, path: str) -> str:
    if context.ask is None:
        return f"the service did not answer: {redactor.text(context.silence)}\n"
    answer = context.ask(path)
    try:
        return _json(msgspec.json.decode(answer), redactor)
    except msgspec.DecodeError:  # the metrics are no JSON
        return redactor.text(answer)


def _command(context: SupportContext, program: str, *arguments: str) -> str:
    found = shutil.which(program, path=context.search_path)
    if found is None:
        return f"{program} is not there\n"
    done = subprocess.run(
        [found, *arguments], capture_output=True, timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL
    )
    said = done.stdout[-MAX_PART_BYTES:].decode("utf-8", "replace")
    complaint = done.stderr[-4096:].decode("utf-8", "replace")
    return said + (f"{program}: status {done.returncode}: {complaint}\n" if done.returncode or complaint else "")


def _json(value: Any, redactor: Redactor) -> str:
    text = msgspec.json.format(msgspec.json.encode(redactor.tree(msgspec.to_builtins(value))), indent=2)
    return text.decode() + "\n"


def _yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))


def _readme(files: dict[str, str], notes: list[str]) -> str:
    lines = [
        "This is for whoever helps with this machine. Left out on purpose: prompts and answers in any form, API keys",
        "and their hashes, passwords, saved conversations, the host's name. Look through it before you send it.",
        "",
        *(f"NOTE: {note}" for note in notes),
        "",
        *(f"{name}: {len(text)} characters" for name, text in sorted(files.items())),
    ]
    return "\n".join(lines) + "\n"
