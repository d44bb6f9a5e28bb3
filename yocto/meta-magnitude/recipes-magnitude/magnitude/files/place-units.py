"""Put the service's units into an image, as `magnitude install-units --root DIR --image` does, at build time.

The command line itself is not used: it needs libraries that have no native recipes. What decides and what writes are
the same functions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from magnitude.units.host import systemd_version
from magnitude.units.layout import Installation, plan
from magnitude.units.place import place
from magnitude.units.shipped import read_shipped, shipped_folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Put the service's units into an image.")
    parser.add_argument("--into", type=Path, required=True, help="root of the image or package")
    parser.add_argument("--prefix", required=True, help="prefix of packages on the device")
    parser.add_argument("--command", required=True, help="the magnitude that the units start")
    parser.add_argument("--systemd-below", type=Path, required=True, help="root that systemd's library lies in")
    arguments = parser.parse_args()
    files = plan(
        read_shipped(shipped_folder()),
        Installation(
            systemd_version=systemd_version(arguments.systemd_below),
            prefix=arguments.prefix,
            command=arguments.command,
            image=True,
        ),
    )
    for placed in place(files, arguments.into, arguments.prefix):
        print(placed.path)


if __name__ == "__main__":
    main()
