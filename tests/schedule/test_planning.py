"""Plans for a folder of models: which are in memory together, and which take turns."""

import logging
from pathlib import Path

import msgspec
import pytest

from magnitude.config import EngineSettings, Settings
from magnitude.config.kv import KvSettings
from magnitude.errors import BudgetExceeded
from magnitude.models.description import KERNEL_GRAPH_FILE, DecoderShape, EncoderShape, ModelDescription
from magnitude.policy.provision import BoardFacts, Provision
from magnitude.policy.selection import Selection
from magnitude.schedule.model_switch import need_of
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planning import kept_context, plan_models, residency_of
from magnitude.schedule.residency import EngineUp, Load, Loaded, Wanted

MB = 1_000_000
SHAPE = DecoderShape(layers=4, kv_heads=1, head_dim=64, vocab_size=1000, hidden_size=64, context_length=2048)


def model(name: str, weight_mb: int, folder: Path) -> ModelDescription:
    kind = "embedder" if name.startswith("e") else "decoder"
    return ModelDescription(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        family="any",
        folder=str(folder / name),
        graph_file="model.onnx",
        model_hash="0",
        weight_bytes=weight_mb * MB,
        decoder=SHAPE if kind == "decoder" else None,
        encoder=EncoderShape(width=64, max_tokens=64) if kind == "embedder" else None,
    )


def planned(start: list, demand: list, free_mb: int, *, pinned: tuple[str, ...] = ("chat",)):
    selection = Selection(at_start=tuple(start), on_demand=tuple(demand), pinned=frozenset(pinned))
    return plan_models(Settings(), selection, BoardFacts(usable_threads=2), free_mb * MB)


def close(plans: list[ModelPlan]) -> None:
    for plan in plans:
        if plan.kv is not None:
            plan.kv.close()


def stays(plans: list[ModelPlan]) -> list[tuple[str, str]]:
    return [(plan.description.name, plan.stay) for plan in plans]


def test_every_model_of_the_folder_gets_a_plan_and_says_when_it_is_in_memory(tmp_path: Path) -> None:
    start = [model("chat", 100, tmp_path), model("e", 50, tmp_path)]
    plans, left_out = planned(start, [model("second", 100, tmp_path)], 4000)
    assert stays(plans) == [("chat", "pinned"), ("e", "at_start"), ("second", "on_demand")]
    assert left_out == {}
    assert sum(plan.kv.resident_bytes() for plan in plans if plan.kv) == 0, "KV that nobody uses takes no memory"
    close(plans)


def test_a_model_of_the_start_without_room_beside_the_others_is_loaded_on_demand(tmp_path: Path) -> None:
    start = [model("chat", 200, tmp_path), model("e-large", 500, tmp_path), model("e", 300, tmp_path)]
    plans, left_out = planned(start, [], 1000)
    assert stays(plans) == [("chat", "pinned"), ("e", "at_start"), ("e-large", "on_demand")]
    assert left_out == {}
    close(plans)


def test_a_model_that_never_fits_is_left_out_with_the_sums(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        plans, left_out = planned([model("chat", 200, tmp_path)], [model("huge", 4000, tmp_path)], 1000)
    assert stays(plans) == [("chat", "pinned")]
    assert isinstance(left_out["huge"], BudgetExceeded)
    assert "weights 4000 MB" in left_out["huge"].message
    assert len(caplog.records) == 1
    close(plans)


def test_kv_that_is_cut_is_told_with_the_guards_sum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = msgspec.structs.replace(Settings(), kv=KvSettings(budget_bytes=900 * MB))
    selection = Selection(at_start=(model("chat", 100, tmp_path),), pinned=frozenset({"chat"}))
    with caplog.at_level(logging.WARNING):
        plans, _ = plan_models(settings, selection, BoardFacts(usable_threads=2), 1200 * MB)
    (record,) = [record for record in caplog.records if record.getMessage() == "KV cut to fit the memory"]
    assert "more than 60% of the" in record.fields["reason"]  # type: ignore[attr-defined]
    assert plans[0].kv_budget_bytes < 900 * MB
    close(plans)


@pytest.mark.parametrize("free_mb", [700, 900, 1500, 4000])
def test_whatever_has_a_plan_is_loaded_when_it_is_asked_for(tmp_path: Path, free_mb: int) -> None:
    start = [model("chat", 200, tmp_path), model("e", 100, tmp_path)]
    plans, left_out = planned(start, [model("second", 150, tmp_path), model("third", 250, tmp_path)], free_mb)
    residency = residency_of(plans, free_bytes=free_mb * MB, keep_alive_s=10.0)
    loaded = tuple(plan.description.name for plan in plans if plan.stay != "on_demand")
    assert residency.apply(EngineUp(loaded), 0.0) == []
    now_s = 100.0
    for plan in plans:
        name = plan.description.name
        assert residency.refusal(need_of(plan)) is None
        if residency.state(name) == "absent":
            effects = residency.apply(Wanted(name), now_s)
            assert effects, "it is loaded, or another one makes room"
            if effects == [Load(name)]:
                residency.apply(Loaded(name, 0.1), now_s)
        now_s += 100.0
    assert set(left_out) | {plan.description.name for plan in plans} == {"chat", "e", "second", "third"}
    close(plans)


@pytest.mark.parametrize(
    ("fitted", "before", "context"),
    [
        (7190, 7100, 7100),  # a little more is free than last time
        (7190, 7300, 7300),  # a little less
        (7190, 5000, 7190),  # much more
        (7190, 8000, 7190),  # much less
        (8192, 8000, 8192),  # the configuration decides, not the memory
        (8100, 8300, 8100),  # longer than is wanted now
        (7190, 0, 7190),
    ],
)
def test_a_context_that_the_memory_decides_stays_as_it_was_when_it_can(
    fitted: int, before: int, context: int
) -> None:
    def provision(context_length: int) -> Provision:
        return Provision(threads=1, prefill_chunk=8, slots=4, context_length=context_length, kv_type="float32")

    kept = kept_context(provision(fitted), provision(8192), before)
    assert kept == provision(context)


def test_a_model_that_is_to_be_loaded_by_its_kernel_plan_and_has_none_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    selection = Selection(at_start=(model("chat", 1, tmp_path),), pinned=frozenset(["chat"]))
    settings = Settings(engine=EngineSettings(graph="kernels"))
    plans, _ = plan_models(settings, selection, BoardFacts(usable_threads=2), 4000 * MB)
    assert plans[0].graph_file == "model.onnx"
    assert "import it again" in plans[0].graph_refused
    assert "not loaded by its kernel plan" in caplog.text
    close(plans)


def test_a_model_is_planned_with_the_graph_that_is_asked_for(tmp_path: Path) -> None:
    chat = msgspec.structs.replace(model("chat", 1, tmp_path), kernel_graphs=(KERNEL_GRAPH_FILE,))
    selection = Selection(at_start=(chat,), pinned=frozenset(["chat"]))
    for wish, graph_file in (("measured", "model.onnx"), ("serving", "model.onnx"), ("kernels", KERNEL_GRAPH_FILE)):
        settings = Settings(engine=EngineSettings(graph=wish))
        plans, _ = plan_models(settings, selection, BoardFacts(usable_threads=2), 4000 * MB)
        assert plans[0].graph_file == plans[0].scope("", "").plan == graph_file
        assert plans[0].graph_refused == ""
        close(plans)
