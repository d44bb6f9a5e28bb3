"""What is made of a folder of layers, and of what BitBake says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.yocto.tiny_layer import write_layer
from yocto.checks.bitbake import Build, judge, judge_compatible, plan_build, run, write_configuration
from yocto.checks.command import main
from yocto.checks.kas import machines, read_build
from yocto.checks.layer import CHECKOUT

# Folders of the clones with what a build looks at, in each of them.
CLONES = (
    "openembedded-core/meta",
    "meta-openembedded/meta-oe",
    "meta-openembedded/meta-python",
    "meta-openembedded/meta-networking",
    "meta-raspberrypi",
)


PLANNED = Build(machine="qemuarm64", kas=read_build("qemuarm64", rauc=False), layers=(), missing=())


def clones(folder: Path, answer: str = "true") -> Path:
    """Layers in which BitBake is a shell script that says `answer`."""
    for name in CLONES:
        (folder / name / "conf").mkdir(parents=True)
        (folder / name / "conf/layer.conf").touch()
    program = folder / "bitbake/bin/bitbake"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    (folder / "openembedded-core/oe-init-build-env").write_text('cd "$1"; PATH="$2/bin:$PATH"\n')
    return folder


def test_a_build_reads_the_layers_of_its_machine_and_ours_last(tmp_path: Path) -> None:
    layers, own = clones(tmp_path / "layers"), tmp_path / "own"
    build = plan_build("raspberrypi5", layers, own, rauc=False)
    assert build.missing == ()
    assert [str(path) for path in build.layers] == [*(str(layers / name) for name in CLONES), str(own)]


def test_layers_that_are_not_there_are_named(tmp_path: Path) -> None:
    layers = clones(tmp_path / "layers")
    (layers / "bitbake/bin/bitbake").unlink()
    build = plan_build("rock-5b", layers, tmp_path / "own", rauc=True)
    assert build.missing == (
        "meta-arm/meta-arm-toolchain",
        "meta-arm/meta-arm",
        "meta-rockchip",
        "meta-rauc",
        "bitbake",
    )


def test_bitbake_runs_in_a_build_folder_that_names_machine_and_layers(tmp_path: Path) -> None:
    layers, folder = clones(tmp_path / "layers", 'cat conf/*.conf; echo "asked $*"'), tmp_path / "build"
    build = plan_build("raspberrypi5", layers, tmp_path / "own", rauc=False)
    write_configuration(build, folder, threads=3)
    status, lines = run(["-g", "magnitude-image"], folder, layers, user=None)
    assert status == 0
    assert lines[-1] == "asked -g magnitude-image"
    assert 'MACHINE = "raspberrypi5"' in lines
    assert 'BB_NUMBER_PARSE_THREADS = "3"' in lines
    assert f"    {layers}/meta-raspberrypi \\" in lines
    assert not [line for line in lines if "rauc" in line]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("rauc", [False, True], ids=["plain", "updates"])
def test_bitbake_is_asked_about_the_build_that_kas_makes(tmp_path: Path, machine: str, rauc: bool) -> None:
    build = plan_build(machine, tmp_path / "layers", tmp_path / "own", rauc=rauc)
    write_configuration(build, tmp_path / "build", threads=1)
    local = (tmp_path / "build/conf/local.conf").read_text()
    names = ["base", f"machine/{machine}", *(["feature/rauc"] if rauc else [])]
    files = [yaml.safe_load((CHECKOUT / f"yocto/kas/{name}.yml").read_text()) for name in names]
    assert f'MACHINE = "{machine}"\nDISTRO = "{files[0]["distro"]}"\n' in local
    for file in files:
        for text in file.get("local_conf_header", {}).values():
            assert text in local
        for name in file.get("env", {}):
            assert re.search(rf'(?m)^{name} = "(.+)"$', local)
    targets = files[-1].get("target") or files[0]["target"]
    assert build.kas.targets == tuple([targets] if isinstance(targets, str) else targets)
    # Settings of the check itself come behind, so that they win.
    assert local.index("BB_NO_NETWORK") > max(local.index(line) for line in build.kas.settings.splitlines())


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("ERROR: Nothing RPROVIDES 'python3-x'", True),
        ("WARNING: /somewhere/python3-wheeled_1.5.bb: no HOMEPAGE", True),
        ("WARNING: magnitude-0.1.0-r0 do_fetch: slow", True),
        ("WARNING: /somewhere/rauc.inc: inherits features_check", False),
        ("WARNING: python3-wheeled-more: not of the layer", False),
    ],
)
def test_errors_and_warnings_about_the_layer_are_faults_and_other_warnings_are_not(
    tmp_path: Path, line: str, ours: bool
) -> None:
    layer = write_layer(tmp_path / "layer")
    findings, theirs = judge(PLANNED, 0, ["NOTE: fine", line], layer)
    assert (len(findings), theirs) == ((1, []) if ours else (0, [line]))


def test_a_message_of_several_lines_is_told_as_a_whole(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "layer")
    lines = ["ERROR: No recipes in default available for:", "  /somewhere/a_%.bbappend", "  /somewhere/b_%.bbappend"]
    findings, _ = judge(PLANNED, 1, lines, layer)
    assert [finding.message.partition("for: ")[2] for finding in findings] == [
        "/somewhere/a_%.bbappend /somewhere/b_%.bbappend"
    ]


def test_a_failure_without_a_message_is_a_fault(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "layer")
    findings, _ = judge(PLANNED, 1, [], layer)
    assert "ended with status 1" in findings[0].message


def test_the_command_says_what_it_left_out_without_layers(capsys: pytest.CaptureFixture[str]) -> None:
    status = main([])
    printed = capsys.readouterr().out
    assert "left out: BitBake for qemuarm64, raspberrypi5, rock-5b: no --layers" in printed
    assert status == ("fault: " in printed)


def test_the_command_names_machines_that_it_could_not_parse_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = clones(tmp_path / "layers")
    words = ["--layers", str(layers), "--without-rauc", "--build", str(tmp_path / "build")]
    # BitBake does not run as root; the stand-in may.
    main(words + (["--user", "root"] if os.geteuid() == 0 else []))
    printed = capsys.readouterr().out
    assert "raspberrypi5: bitbake -p" in printed
    assert "raspberrypi5: bitbake -g magnitude-image\n" in printed
    assert "left out: BitBake for rock-5b: there is no meta-arm/meta-arm-toolchain" in printed
    assert "left out: bitbake -n magnitude-image: no --dry-run" in printed
    assert "left out: yocto-check-layer: no --compatible" in printed


def test_the_update_is_built_with_the_image_where_there_are_updates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = clones(tmp_path / "layers")
    (layers / "meta-rauc/conf").mkdir(parents=True)
    (layers / "meta-rauc/conf/layer.conf").touch()
    main(arguments(layers, tmp_path / "build", "--dry-run"))
    printed = capsys.readouterr().out
    assert "raspberrypi5: bitbake -n magnitude-image magnitude-update-bundle\n" in printed
    assert 'DISTRO_FEATURES:append = " rauc"' in (tmp_path / "build/raspberrypi5/conf/local.conf").read_text()


def test_settings_of_the_builder_come_last(tmp_path: Path) -> None:
    layers, own = clones(tmp_path / "layers"), tmp_path / "own.conf"
    own.write_text('DL_DIR = "/somewhere"\n')
    main(arguments(layers, tmp_path / "build", "--without-rauc", "--conf", str(own)))
    written = (tmp_path / "build/raspberrypi5-plain/conf/local.conf").read_text()
    assert written.endswith('DL_DIR = "/somewhere"\n')


@pytest.mark.parametrize("verdict", ["PASS", "FAIL"])
def test_yocto_s_own_check_is_of_the_layer_in_the_system_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verdict: str
) -> None:
    layers = clones(tmp_path / "layers")
    program = layers / "bitbake/bin/yocto-check-layer"
    program.write_text(f'#!/bin/sh\necho "asked $*"\necho "INFO: meta-magnitude ... {verdict}"\n')
    program.chmod(0o755)
    main(arguments(layers, tmp_path / "build", "--without-rauc", "--compatible"))
    printed = capsys.readouterr().out
    assert "raspberrypi5: yocto-check-layer" in printed
    assert "bitbake -p\n" not in printed
    assert ("raspberrypi5: meta-magnitude ... FAIL" in printed) == (verdict == "FAIL")
    folder = tmp_path / "build/raspberrypi5-plain-compatible"
    asked = (folder / "yocto-check-layer.log").read_text().splitlines()[0]
    assert asked.split()[1].endswith("/meta-magnitude")
    # It finds what the layer depends on only among what it is told of.
    assert {str(layers / "meta-raspberrypi"), str(layers / "openembedded-core/meta")} <= set(asked.split())
    assert "magnitude" not in (folder / "conf/local.conf").read_text()
    assert "meta-magnitude" not in (folder / "conf/bblayers.conf").read_text()


def test_a_check_that_did_not_look_at_the_layer_is_a_fault(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "layer")
    assert judge_compatible("m", 0, ["INFO: Detected layers:", "INFO: ours ... PASS"], layer) == []
    assert judge_compatible("m", 0, ["INFO: Detected layers:"], layer)
    assert judge_compatible("m", 2, ["INFO: ours ... SKIPPED (Missing dependencies)"], layer)
    assert "no space" in judge_compatible("m", 1, ["no space left"], layer)[0].message


def arguments(layers: Path, build: Path, *further: str) -> list[str]:
    # BitBake does not run as root; the stand-in may.
    user = ["--user", "root"] if os.geteuid() == 0 else []
    return ["--layers", str(layers), "--build", str(build), "--machine", "raspberrypi5", *further, *user]
