from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.firstboot.announcement import Facts, addresses_of, announce
from magnitude.supervise.exit_status import EXIT_CONFIG

READY = Facts(
    version="1.0",
    host="kitchen",
    active_state="active",
    status_text="2 models, idle",
    addresses=("192.0.2.7",),
    has_ssh=True,
    can_log_in=True,
)
texts = st.text(max_size=300)


def with_facts(**changes: object) -> Facts:
    fields = {name: getattr(READY, name) for name in READY.__struct_fields__}
    return Facts(**(fields | changes))  # type: ignore[arg-type]


def test_a_device_that_serves_says_where_it_is() -> None:
    said = announce(READY)
    assert "NOT READY" not in said.line
    assert said.line == "Magnitude 1.0 on kitchen (192.0.2.7): ready. 2 models, idle"


def test_the_prompt_leaves_the_address_to_agetty_which_follows_it() -> None:
    first = announce(READY).issue.splitlines()[0]
    assert "192.0.2.7" not in first
    assert first.endswith(r"\4 \6")


def test_what_keeps_it_from_serving_is_named_with_where_to_look() -> None:
    broken = announce(with_facts(active_state="failed", exit_status=EXIT_CONFIG))
    assert "NOT READY" in broken.line
    assert "configuration" in broken.line
    for state in ("failed", "activating"):
        assert "magnitude doctor" in announce(with_facts(active_state=state, exit_status=1)).line
    assert "start 4" in announce(with_facts(active_state="activating", restarts=3)).line
    assert "does not run" in announce(with_facts(active_state="inactive")).line


def test_a_device_without_network_or_key_says_what_is_missing() -> None:
    said = announce(with_facts(addresses=(), can_log_in=False, rejected=("wifi.yaml",)))
    assert "no network address yet" in said.line
    assert "authorized_keys" in said.issue
    assert "wifi.yaml" in said.issue
    without_ssh = announce(with_facts(has_ssh=False, can_log_in=False))
    assert "authorized_keys" not in without_ssh.issue  # a key would open nothing there


@given(texts, texts)
def test_no_text_can_drive_the_terminal_or_agetty(host: str, status: str) -> None:
    said = announce(with_facts(host=host, status_text=status))
    assert said.line.isprintable()
    assert all(line.isprintable() for line in said.issue.split("\n"))
    second = said.issue.split("\n")[1]
    assert "\\" not in second.replace("\\\\", "")


def test_addresses_of_the_device_are_those_that_others_can_reach() -> None:
    links = [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "scope": "host"}]},
        {
            "ifname": "eth0",
            "addr_info": [
                {"local": "192.0.2.7", "scope": "global"},
                {"local": "2001:db8::7", "scope": "global", "temporary": True},
                {"local": "fe80::1", "scope": "link"},
            ],
        },
        {"ifname": "wlan0"},
        "nonsense",
    ]
    assert addresses_of(links) == ("192.0.2.7",)
