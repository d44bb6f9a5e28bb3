"""How many cores may be used, and what keeps the others away?"""

from __future__ import annotations

from magnitude.board import compute_cpus, read_cpu
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding


def check(context: DoctorContext) -> Finding:
    cpu = read_cpu(context.roots, context.affinity)
    online = cpu.topology.online
    fast = compute_cpus(cpu.topology, cpu.affinity)
    lines = [f"online {_list(online)}, usable {_list(cpu.affinity)}, fastest together {_list(fast)}"]
    clusters = cpu.topology.clusters
    if len(clusters) > 1:
        lines.append("clusters, fastest first: " + "; ".join(_list(cluster.cpus) for cluster in clusters))
    lines.append(f"CPU quota: {f'{cpu.quota_cpus:.2f} CPUs' if cpu.quota_cpus is not None else 'none'}")
    lines.append(f"threads by default: {cpu.threads}")
    wanted = context.settings.engine.threads
    if wanted > cpu.threads:
        return Finding(
            level="warning",
            title=f"engine.threads is {wanted}, but {cpu.threads} can run at once",
            detail="\n".join(lines),
            advice="Set engine.threads to 0 or to at most that number: threads that wait for a core slow all others",
        )
    if cpu.quota_cpus is not None and cpu.quota_cpus < len(fast):
        return Finding(
            level="warning" if cpu.quota_cpus < 1 else "notice",
            title=f"A CPU quota grants {cpu.quota_cpus:.2f} of {len(fast)} cores",
            detail="\n".join(lines),
            advice="Raise CPUQuota= of the unit, or the container's limit, if the model should be faster",
        )
    if set(cpu.affinity) < set(online):
        return Finding(
            level="notice",
            title=f"{len(cpu.affinity)} of {len(online)} cores may be used",
            detail="\n".join(lines),
            advice="CPUAffinity= of the unit, taskset or a cpuset keeps the others away",
        )
    return Finding(
        level="ok", title=f"{cpu.threads} threads on {len(cpu.affinity)} usable cores", detail="\n".join(lines)
    )


def _list(cpus: tuple[int, ...]) -> str:
    return ",".join(map(str, cpus))
