"""What differs between two configurations, and which differences a running service can follow. Pure."""

from __future__ import annotations

import msgspec

from magnitude.config.settings import Settings

# What is looked up each time it is needed, so that a new value counts from the next request on. Everything else is
# built into what the start made: sockets, slots, plans, the engine.
LIVE_KEYS = frozenset(
    {
        "engine.default_max_tokens",
        "engine.default_temperature",
        "kv.save_after_s",
        "kv.saved_hourly_bytes",
        "kv.saved_max_bytes",
        "kv.saved_min_tokens",
        "log.content",
        "log.format",
        "log.level",
        "memory.check_every_s",
        "memory.cool_down_s",
        "memory.enabled",
        "memory.engine_limit_percent",
        "memory.long_prompt_tokens",
        "memory.own_limit_percent",
        "memory.thresholds_percent",
        "models.aliases",
        "models.keep_alive_s",
        "policy.bandwidth_threshold",
        "policy.dwell_s",
        "policy.explore",
        "policy.half_life_s",
        "policy.latency_limit_ms",
        "policy.least_gain",
        "policy.loss_budget",
        "policy.prefer",
        "policy.profile_every",
        "policy.save_every_s",
        "policy.session_memory_bytes",
        "power.battery_hysteresis_percent",
        "power.battery_least_percent",
        "power.battery_saving_percent",
        "power.calm_s",
        "power.enabled",
        "schedule.aging_s",
        "schedule.encode_max_batch",
        "schedule.encode_wait_ms",
        "schedule.utilisation",
        "server.allowed_hosts",
        "server.api_keys",
        "server.max_messages",
        "server.max_queue",
        "server.max_request_bytes",
        "thermal.down_c",
        "thermal.enabled",
        "thermal.target_c",
        "thermal.up_c",
    }
)


class ReloadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How reading the configuration again went: keys that count now, keys that a restart is needed for, or the
    error, with which nothing changed."""

    applied: list[str] = []
    needs_restart: list[str] = []
    error: str = ""
    hint: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"reload failed: {self.error} (old configuration kept)"
        if not self.applied and not self.needs_restart:
            return "reload: nothing changed"
        parts = [f"reload applied: {', '.join(self.applied) or 'nothing'}"]
        if self.needs_restart:
            parts.append(f"needs restart: {', '.join(self.needs_restart)}")
        return ", ".join(parts)


def changed(old: Settings, new: Settings) -> list[str]:
    """Keys (`section.key`, or a section that is there in one of the two only) whose values differ, sorted."""
    found: list[str] = []
    for section in Settings.__struct_fields__:
        before, after = getattr(old, section), getattr(new, section)
        if before == after:
            continue
        if before is None or after is None:
            found.append(section)
            continue
        found += [
            f"{section}.{key}" for key in before.__struct_fields__ if getattr(before, key) != getattr(after, key)
        ]
    return sorted(found)


def followed(old: Settings, new: Settings) -> Settings:
    """`old` with those values of `new` that a running service can follow: what is in force after a reload."""
    sections: dict[str, msgspec.Struct] = {}
    for key in changed(old, new):
        if key not in LIVE_KEYS:
            continue
        section, _, name = key.partition(".")
        before = sections.get(section, getattr(old, section))
        sections[section] = msgspec.structs.replace(before, **{name: getattr(getattr(new, section), name)})
    return msgspec.structs.replace(old, **sections)
