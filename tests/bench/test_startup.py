"""Reading what `python -X importtime` writes."""

import subprocess
import sys

from bench.startup import parse_importtime, top_packages

TEXT = """\
import time: self [us] | cumulative | imported package
import time:       100 |        100 |     json.scanner
import time:       300 |        400 |   json.decoder
warning: something else
import time:        50 |        450 | json
import time:      2000 |       2000 | numpy
"""


def test_entries_hold_own_and_cumulative_time_and_their_depth() -> None:
    entries = parse_importtime(TEXT)
    assert [(entry.module, entry.self_ms, entry.cumulative_ms, entry.depth) for entry in entries] == [
        ("json.scanner", 0.1, 0.1, 2),
        ("json.decoder", 0.3, 0.4, 1),
        ("json", 0.05, 0.45, 0),
        ("numpy", 2.0, 2.0, 0),
    ]


def test_packages_are_summed_and_the_dearest_comes_first() -> None:
    top = top_packages(parse_importtime(TEXT), 5)
    assert [(entry.module, round(entry.self_ms, 2)) for entry in top] == [("numpy", 2.0), ("json", 0.45)]
    assert len(top_packages(parse_importtime(TEXT), 1)) == 1


def test_what_this_python_writes_is_understood() -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import json.decoder"], check=True, capture_output=True, text=True
    )
    entries = {entry.module: entry for entry in parse_importtime(ran.stderr)}
    assert entries["json.decoder"].cumulative_ms >= entries["json.decoder"].self_ms
    assert entries["json"].depth < entries["json.scanner"].depth
