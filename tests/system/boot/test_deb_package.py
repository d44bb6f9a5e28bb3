"""The Debian package on the systems that it is for: installed, upgraded, removed, purged. Takes minutes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import rootfs
from booted_board import CONFIG, SERVICE, SOCKET, STATE, TINY, UNIX_SOCKET, Board
from nspawn import until

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

NEWER = "99.0.0"
PACKAGES = "/mnt/packages"
LIBRARY = "/usr/lib/magnitude"
DPKG = ("env", "DEBIAN_FRONTEND=noninteractive", "dpkg")


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def suite(can_boot: None, request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def packages(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of this checkout, `older.deb`, and one that is the same but for its version."""
    folder = tmp_path_factory.mktemp(f"packages-{suite}")
    folder.chmod(0o755)
    build_deb = rootfs.CHECKOUT / "image/debian/build_deb.py"
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(
        [sys.executable, str(build_deb), f"--suite={suite}", f"--out={folder}", "--fast", architecture], check=True
    )
    (built,) = folder.glob("*.deb")
    built.rename(folder / "older.deb")
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", str(folder / "older.deb"), str(tree)], check=True)
    change(tree / "DEBIAN/control", r"(?m)^Version: .*$", f"Version: {NEWER}-1~test")
    (module,) = tree.rglob("site-packages/magnitude/__init__.py")
    change(module, r'(?m)^__version__ = ".*"$', f'__version__ = "{NEWER}"')
    subprocess.run(
        ["dpkg-deb", "--build", "-Zgzip", "-z1", str(tree), str(folder / "newer.deb")],
        check=True,
        capture_output=True,
    )
    shutil.rmtree(tree)
    return folder


def change(path: Path, pattern: str, text: str) -> None:
    changed, found = re.subn(pattern, text, path.read_text())
    assert found == 1, path
    path.write_text(changed)


@pytest.fixture
def board(suite: str, packages: Path) -> Iterator[Board]:
    """A system from which an installation by hand was taken away again, as whoever changes to the package does."""
    tiny = rootfs.CHECKOUT / rootfs.TINY
    options = [f"--bind-ro={packages}:{PACKAGES}", f"--bind-ro={tiny}:/mnt/tiny"]
    with Board(rootfs.build_root(suite), options=options) as board:
        board.run("magnitude", "install-units", "--remove")
        board.run(
            "rm", "-rf", rootfs.PREFIX, "/usr/local/bin/magnitude", STATE, "/var/cache/magnitude", "/etc/magnitude"
        )
        yield board


def bring_model(board: Board) -> None:
    board.run("install", "-d", "-o", "magnitude", "-g", "magnitude", f"{STATE}/models")
    board.run("cp", "-r", "/mnt/tiny", f"{STATE}/models/tiny")


def install(board: Board, name: str) -> str:
    return board.run(*DPKG, "--install", f"{PACKAGES}/{name}.deb", within_s=600).text


def test_without_a_model_it_is_installed_enabled_and_says_the_one_command(board: Board) -> None:
    said = install(board, "older")
    assert "sudo magnitude import FILE --name NAME && sudo systemctl start magnitude" in said
    assert board.show(SERVICE, "UnitFileState") == board.show(SOCKET, "UnitFileState") == "enabled"
    assert board.show(SERVICE, "ActiveState") == "inactive"
    assert board.run("readlink", "-f", "/usr/bin/magnitude").text.strip() == f"{LIBRARY}/bin/magnitude"
    assert board.run("magnitude", "config", "check").status == 0
    check = [sys.executable, str(rootfs.CHECKOUT / "scripts/check-image"), "--package", f"{board.path('/')}/"]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "Nothing found.\n"), checked.stderr
    bring_model(board)
    board.run("systemctl", "start", SERVICE)
    board.wait_ready()
    assert board.complete()


def test_no_file_of_the_package_is_missing_or_changed_and_every_package_can_be_imported(board: Board) -> None:
    install(board, "older")
    # The roots leave all documents out, by a setting of dpkg.
    differing = board.run(*DPKG, "--verify", "magnitude", check=False).text.splitlines()
    assert [line for line in differing if "/usr/share/doc/" not in line] == []
    imports = "import magnitude.engine, onnxruntime, tokenizers, llguidance, onnx, gguf, safetensors, pyudev, psutil"
    board.run(f"{LIBRARY}/bin/python3", "-c", f"{imports}; pyudev.Context()")
    # What the system has installed for its own Python is neither seen nor changed.
    where = board.run(f"{LIBRARY}/bin/python3", "-c", "import sys; print(sys.path[1:])").text
    assert "dist-packages" not in where


def test_nothing_that_belongs_to_images_alone_is_in_the_package(packages: Path) -> None:
    """On somebody's system it would change their ssh, journal, clock and watchdog, and reboot it."""
    contents = ["dpkg-deb", "--fsys-tarfile", str(packages / "older.deb")]
    with (
        subprocess.Popen(contents, stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
    ):
        names = {Path(name).name for name in archive.getnames()}
    image = {path.name for path in (rootfs.CHECKOUT / "systemd/image").rglob("*") if path.is_file()}
    assert len(image) > 10
    assert names & image == set()
    assert "magnitude.service" in names


def test_an_upgrade_restarts_once_and_no_client_is_turned_away(board: Board) -> None:
    bring_model_before(board)
    install(board, "older")
    board.wait_ready()
    expected, main, starts = board.complete(), board.main_pid, count_starts(board)
    board.write(CONFIG, "server:\n  max_queue: 7\nengine:\n  speculation: 'off'\n")
    clients = Clients(board)
    said = install(board, "newer")
    until(lambda: board.main_pid not in (0, main), within_s=60, what="the next service")
    board.wait_ready()
    answers = clients.stop()
    assert "restart" not in said.lower()
    assert board.state()["version"] == NEWER
    assert count_starts(board) == starts + 1
    assert len(answers) > 2
    assert set(answers) == {(200, expected)}
    assert "max_queue: 7" in board.path(CONFIG).read_text(), "the administrator's configuration was replaced"


def test_what_an_administrator_disabled_stays_so(board: Board) -> None:
    bring_model_before(board)
    install(board, "older")
    board.wait_ready()
    board.run("systemctl", "disable", "--now", SERVICE, SOCKET)
    install(board, "newer")
    assert board.show(SERVICE, "UnitFileState") == "disabled"
    assert board.show(SERVICE, "ActiveState") == "inactive"


def test_a_removal_leaves_state_and_configuration_and_nothing_else(board: Board) -> None:
    bring_model_before(board)
    install(board, "older")
    board.wait_ready()
    expected = board.complete()
    board.write(CONFIG, "server:\n  max_queue: 7\nengine:\n  speculation: 'off'\n")
    board.run(*DPKG, "--remove", "magnitude")
    assert board.show(SERVICE, "ActiveState") == "inactive"
    assert not board.path(UNIX_SOCKET).exists()
    assert not board.path(LIBRARY).exists()
    assert not board.path("/usr/lib/systemd/system/magnitude.service").exists()
    assert board.path(f"{STATE}/models/tiny").is_dir()
    assert "max_queue: 7" in board.path(CONFIG).read_text()
    install(board, "older")
    board.wait_ready()
    assert board.complete() == expected


def test_purging_takes_the_configuration_and_keeps_models_unless_that_was_agreed_to(board: Board) -> None:
    bring_model_before(board)
    install(board, "older")
    board.wait_ready()
    board.write("/etc/magnitude/conf.d/mine.yaml", "server:\n  max_queue: 7\n")
    said = board.run(*DPKG, "--purge", "magnitude").text
    assert f"stay in {STATE}" in said
    assert board.path(f"{STATE}/models/tiny").is_dir()
    assert not board.path("/etc/magnitude").exists()
    links = board.run("find", "/etc/systemd/system", "-name", "magnitude*").text
    assert links == ""

    install(board, "older")
    board.wait_ready()
    board.run("sh", "-c", "echo 'magnitude magnitude/purge-state boolean true' | debconf-set-selections")
    board.run(*DPKG, "--purge", "magnitude")
    assert not board.path(STATE).exists()
    assert board.run("id", "-u", "magnitude").status == 0, "the user stays: its number must not become another's"


def bring_model_before(board: Board) -> None:
    """A model that is there before the package is, as after a purge that kept it."""
    board.run("mkdir", "-p", f"{STATE}/models")
    board.run("cp", "-r", "/mnt/tiny", f"{STATE}/models/tiny")


def count_starts(board: Board) -> int:
    return len(re.findall(r"Started (?:magnitude.service - )?Magnitude inference", board.journal("--unit", SERVICE)))


class Clients:
    """Asks for a completion again and again, in a thread, each time with a new connection."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._answers: list[tuple[int, str]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def stop(self) -> list[tuple[int, str]]:
        self._stop.set()
        self._thread.join(120)
        return self._answers

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                with self._board.client(UNIX_SOCKET) as client:
                    reply = client.post("/v1/completions", json=TINY)
                text = reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.text
                self._answers.append((reply.status_code, text))
            except httpx.TransportError as error:
                self._answers.append((0, repr(error)))
            self._stop.wait(0.2)
