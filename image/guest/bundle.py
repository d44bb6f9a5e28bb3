"""Updates for the image: bundles of RAUC, signed with a key that is made for development at the first build."""

from __future__ import annotations

import shutil
from pathlib import Path

from image.guest.workshop import Workshop

KEY, CERTIFICATE = "update-key.pem", "update-cert.pem"
# As long as anybody tries out one image.
VALID_DAYS = 3650
# Fast to make, and fast to read in emulation.
SQUASHFS = "-comp zstd -Xcompression-level 3"
MANIFEST = """\
[update]
compatible=magnitude-guest-{architecture}
version={version}

[bundle]
format=verity

[image.rootfs]
filename={image}
"""


def make_key(workshop: Workshop, out: Path) -> Path:
    """The certificate in `out` that updates are checked against; made, with its key, when there is none yet."""
    if not (out / CERTIFICATE).exists():
        workshop.run(
            out, "openssl", "req", "-x509", "-newkey", "rsa:3072", "-noenc", "-days", str(VALID_DAYS),
            "-subj", "/O=Magnitude/CN=development key of a guest image", "-keyout", KEY, "-out", CERTIFICATE,
        )  # fmt: skip
        (out / KEY).chmod(0o600)
    return out / CERTIFICATE


def make_bundle(
    workshop: Workshop, folder: Path, image: str, target: Path, keys: Path, architecture: str, version: str
) -> None:
    """Write the bundle `target` with the root file system `image`, which lies in `folder`, signed with the key that
    lies in `keys`. Raises `BuildFailed`."""
    content = folder / "bundle"
    content.mkdir()
    (folder / image).rename(content / image)
    (content / "manifest.raucm").write_text(MANIFEST.format(architecture=architecture, version=version, image=image))
    for name in (KEY, CERTIFICATE):
        shutil.copy(keys / name, folder / name)
    workshop.run(
        folder, "rauc", "bundle", f"--cert={CERTIFICATE}", f"--key={KEY}", f"--mksquashfs-args={SQUASHFS}",
        "bundle", "made.raucb",
    )  # fmt: skip
    shutil.move(folder / "made.raucb", target)
    (content / image).rename(folder / image)
    for name in (KEY, CERTIFICATE):
        (folder / name).unlink()
    shutil.rmtree(content)
