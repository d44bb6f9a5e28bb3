"""The service: builds the parts and connects them. `service_loop.py` runs it.

    intake ──▶ dispatcher (admission, strategy) ──▶ engine process ──▶ feedback
                          supervisor keeps the engine alive

No model runs in this process.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from magnitude.board.cpu import engine_cpus, read_cpu
from magnitude.board.memory import MemorySnapshot, effective_memory
from magnitude.board.profiles import profile_of
from magnitude.board.roots import HostRoots
from magnitude.board.workload import ModelCost
from magnitude.config import Settings
from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import Heartbeat, Steps, Tokens, ToService
from magnitude.errors import EngineNotReady, MagnitudeError
from magnitude.feedback.circumstances import ChosenBy, PlanFacts
from magnitude.feedback.counter_sight import CounterSight
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.operators import OperatorSeries
from magnitude.feedback.recorder import Recorder
from magnitude.kernels.library import kernels
from magnitude.kernels.offered import computed_by
from magnitude.models.description import ModelDescription
from magnitude.paths import Paths
from magnitude.policy.provision import BoardFacts, draft_bytes
from magnitude.policy.selection import find_draft_model, find_models, select
from magnitude.policy.terms import BoardSeen, Decided
from magnitude.policy.tree import facts_of_board
from magnitude.schedule.arbiter import Arbiter, MayUse, Want
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.golden_gate import GoldenGate
from magnitude.schedule.kept_memory import KeptMemory
from magnitude.schedule.loading import ModelLoader, load_deadline_s
from magnitude.schedule.memory_relief import MemoryRelief
from magnitude.schedule.model_switch import ModelSwitch, need_of
from magnitude.schedule.pacing import Pacing
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.plan_facts import facts_of, served_as
from magnitude.schedule.planning import plan_models, residency_of
from magnitude.schedule.present_work import PresentWork
from magnitude.schedule.slot_files import SlotFiles
from magnitude.schedule.strategies import Strategies
from magnitude.schedule.strategy_board import BoardSight
from magnitude.schedule.strategy_setup import (
    Surroundings,
    board_name_of,
    build_strategies,
    field_test_of,
    rules_of,
)
from magnitude.schedule.throughput import Throughput
from magnitude.schedule.variant_gate import VariantGate
from magnitude.schedule.victims import victims_of
from magnitude.schedule.warm_up import warm_up
from magnitude.service_board import watch_board
from magnitude.service_metrics import metrics_of
from magnitude.supervise.cgroup_leaf import EngineCgroup
from magnitude.supervise.engine_process import EngineProcess
from magnitude.supervise.exit_status import EXIT_ENGINE_BUDGET_SPENT, EXIT_MEMORY
from magnitude.supervise.lifecycle import EngineLifecycle, LoadFailed, ModelsReady, Phase
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.memory_watch import EngineFigures, MemoryWatch
from magnitude.supervise.stopping import Stopping
from magnitude.supervise.supervisor import EngineSupervisor
from magnitude.text.catalogue import TextCatalogue

if TYPE_CHECKING:
    from magnitude.simulate.live import LiveBoard

log = logging.getLogger("magnitude.service")

# A spare engine is kept while so much memory is free besides: ten times what it takes itself, so that it is never the
# reason why something else does not fit.
SPARE_HEADROOM_BYTES = 300_000_000

# The engine's name in the account of cores and memory.
ENGINE = "engine"


def _room_bytes(memory: MemorySnapshot, inherited_bytes: int) -> int:
    """What the engine may draw from. KV memory of an earlier service counts as free: what fits the plan is used
    again, and the rest is given back before anything is loaded. It is not charged to this service's control group, so
    that only the group's limit bounds the sum."""
    room_bytes = memory.headroom_bytes + inherited_bytes
    return room_bytes if memory.limit_bytes is None else min(room_bytes, memory.limit_bytes)


class Service:
    """One running service: the engine's supervisor and the dispatcher in front of it."""

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        *,
        roots: HostRoots | None = None,
        engine_cgroup: EngineCgroup | None = None,
        kept: KeptMemory | None = None,
        simulated: LiveBoard | None = None,
    ) -> None:
        """`kept` has what an earlier service left in memory, and leaves this one's to the next; None: neither. Heat,
        clocks and speed are those of a `simulated` board, where there is one."""
        self.settings = settings
        self.stopping = Stopping()
        self._golden = GoldenGate(paths.state)
        self._variants = VariantGate(paths.state)
        self._warm: set[str] = set()  # models that have done their first work in this run of the service
        self._throughput = Throughput(paths.state)
        self._cpu = read_cpu(roots)
        self._roots = roots
        self._kept = kept = kept or KeptMemory()
        allowance = self._allowance(_room_bytes(effective_memory(roots), kept.inherited_bytes()))
        # Asked only where it matters: the answer loads the library.
        no_kernels = kernels.why_not() if settings.engine.graph == "kernels" else ""
        board = BoardFacts(usable_threads=allowance.threads, no_kernels=no_kernels)
        draft = find_draft_model(settings, paths.models)
        free_bytes = allowance.memory_bytes - draft_bytes(draft, settings.engine)
        selection = select(settings, find_models(settings, paths.models))
        plans, left_out = plan_models(settings, selection, board, free_bytes, draft, contexts=kept.contexts())
        if not plans:
            raise next(iter(left_out.values()))
        kept.adopt(plans)
        self._start = [plan for plan in plans if plan.stay != "on_demand"]
        self._first: set[str] = set()  # models that the engine loaded before it was up
        self.texts = TextCatalogue()
        self.supervisor = EngineSupervisor(
            EngineLifecycle(
                load_deadline_s=load_deadline_s(self._start), step_deadline_s=settings.engine.step_deadline_s
            ),
            load=self._load,
            on_message=self._on_message,
            on_up=self._on_up,
            on_down=self._on_down,
            on_failed=self._on_failed,
            spawn=partial(EngineProcess.spawn, group=engine_cgroup, packed=paths.cache / "packed", scratch=paths.run),
            on_beat=self._on_beat,
            on_give_up=lambda reason: self.request_exit(EXIT_ENGINE_BUDGET_SPENT, reason),
            spare_wanted=lambda: settings.engine.spare != "off" and self._free_bytes() > SPARE_HEADROOM_BYTES,
            warm_up=self._warm_up if settings.engine.spare == "hot" else None,
            open_requests=lambda: self.dispatcher.running,
        )
        self.recorder = Recorder(
            paths.state,
            settings.records,
            engine=self.supervisor,
            restarts=lambda: self.supervisor.lifecycle.restarts,
            load=lambda: (self.dispatcher.waiting, self.dispatcher.running),
            plan=self._facts_of,
            models=lambda: [served_as(plan) for plan in self.dispatcher.plans()],
            memory=lambda: self.memory,
            last_lines=lambda: self.supervisor.last_lines,
            step_deadline_s=settings.engine.step_deadline_s,
            temperature_c=lambda: self.board.temp_c,
            throttled=lambda: self.board.throttled,
            board=self._board_seen,
            chosen=self._chosen_by,
        )
        self.feedback = self.recorder.feedback
        self._files = SlotFiles(paths.state / "kv", roots=roots)
        self.dispatcher = Dispatcher(
            plans,
            aliases=settings.models.aliases,
            max_queue=settings.server.max_queue,
            feedback=self.feedback,
            engine=self.supervisor,
            schedule=settings.schedule,
            kv=settings.kv,
            files=self._files,
            kept=kept,
            left_out=left_out,
            storage_off=self._storage_off,
            on_loss=lambda loss, tasks, refused: self.recorder.engine_lost(loss, victims_of(tasks, refused)),
        )
        self.loader = ModelLoader(self.dispatcher, self._admit)
        self.switch = ModelSwitch(
            residency_of(plans, free_bytes=free_bytes, keep_alive_s=settings.models.keep_alive_s),
            self.loader,
            plans,
            changed=self._models_changed,
            refuse=self.dispatcher.refuse,
            leaving=self._leaving,
            loading=self.supervisor.model_loads,
        )
        self.dispatcher.use(self.switch)
        self.relief = MemoryRelief(
            self.dispatcher,
            self.switch,
            free_bytes=free_bytes,
            draft_bytes=draft_bytes(draft, settings.engine),
            drop_caches=self.texts.trim,
            engine=self.supervisor,
            restart=lambda reason: self.request_exit(EXIT_MEMORY, reason),
        )
        self.simulated = simulated
        self.board_roots = simulated.roots if simulated is not None else roots or HostRoots()
        self.profile = (
            simulated.profile if simulated is not None else profile_of(settings.board.profile, self.board_roots)
        )
        self.pace = Pacing(self.dispatcher.next_id)
        self.sampler, self.board = watch_board(self, paths, plans[0])
        self.dispatcher.work.on_change = self.board.phase_changed
        self.dispatcher.watched.board = self.board.view
        self.dispatcher.watched.pace = lambda: self.pace.by_source
        if simulated is not None:
            self.dispatcher.watched.simulated_board = simulated.state
        # Nothing of the kind is known of a simulated board's work.
        self.ceilings = facts_of_board(self.profile, self._cpu.affinity) if simulated is None else None
        self.operators = OperatorSeries()
        self.counters = CounterSight(
            self.feedback.runs,
            hello=lambda: self.supervisor.hello,
            weights=self._decoder_weights,
            read_bytes_s=self.ceilings.read_bytes_s if self.ceilings is not None else None,
        )
        self.dispatcher.watched.operators = self.operators.figures
        self.dispatcher.watched.counters = self.counters.state
        self.board_sight = BoardSight(
            snapshot=lambda: self.board.snapshot,
            in_force=self.board.in_force,
            memory_step=lambda: self.memory.step,
            # A simulated board's heat, and the CPUs that really compute.
            cpus=engine_cpus(self._cpu.topology, self._cpu.affinity, self._cpu.quota_cpus) if simulated else None,
            bandwidth_use=self.counters.bandwidth_use,
        )
        self.memory = MemoryWatch(
            settings.memory,
            self.relief,
            engine=self._engine_figures,
            roots=roots,
            note=self.sampler.note_memory,
            told=self.recorder.memory_step_taken,
        )
        self.dispatcher.watched.memory = self.memory.state
        self.dispatcher.watched.field_test = self.field_test = field_test_of(settings)
        self.strategies = self._build_strategies(paths)
        self.recorder.start()

    def _allowance(self, free_bytes: int) -> MayUse:
        """What the engine may draw from the board's one account of cores and memory. It is the only engine so far and
        gets all of it; a second one would have to ask for a share."""
        self.arbiter = Arbiter(threads=self._cpu.threads, memory_bytes=free_bytes)
        wanted = Want(ENGINE, threads=self._cpu.threads, memory_bytes=free_bytes)
        granted = [effect for effect in self.arbiter.apply(wanted) if isinstance(effect, MayUse)]
        return granted[0] if granted else MayUse(ENGINE, threads=1, memory_bytes=0)

    def _build_strategies(self, paths: Paths) -> Strategies | None:
        """None where everything is to run as configured: then nothing of the loops is there."""
        if not self.settings.engine.self_optimize or self.field_test.arm == "off":
            return None
        simulated = self.simulated is not None
        strategies = build_strategies(
            self.settings,
            paths.state,
            Surroundings(
                dispatcher=self.dispatcher,
                loader=self.loader,
                switch=self.switch,
                relief=self.relief,
                memory=lambda: self.memory,
                board=self.board_sight,
                hello=lambda: self.supervisor.hello,
                note=self._strategy_decided,
                rules=rules_of(self.settings, self.profile.name),
                board_name=board_name_of(self.profile, simulated=simulated),
                operators=self.operators,
                ceilings=self.ceilings,
            ),
        )
        self.board.on_look = strategies.board_looked
        self.dispatcher.watched.strategies = strategies.state
        return strategies

    def tune_strategies(self, settings: Settings) -> None:
        """Other bounds for the strategy loops."""
        if self.strategies is not None:
            self.strategies.tune(
                rules_of(settings, self.profile.name),
                save_every_s=settings.policy.save_every_s,
                session_memory_bytes=settings.policy.session_memory_bytes,
                profile_every=settings.policy.profile_every,
            )

    def _strategy_decided(self, model: str, decided: Decided) -> None:
        strategy = self.strategies.strategy_of(model) if self.strategies is not None else None
        self.recorder.decided(decided, model, strategy)

    def _decoder_weights(self) -> list[tuple[str, int]]:
        models = (plan.description for plan in self.dispatcher.plans() if plan.kv is not None)
        return [(model.name, model.weight_bytes) for model in models]

    def _board_seen(self) -> BoardSeen | None:
        return self.board_sight()

    def _chosen_by(self, model: str) -> ChosenBy:
        strategies = self.strategies
        return ChosenBy(
            strategy=strategies.strategy_of(model) if strategies is not None else None,
            situation=strategies.situation(model) if strategies is not None else None,
            field_test=self.field_test.name if self.field_test.arm else "",
            arm=self.field_test.arm,
        )

    def _models_changed(self) -> None:
        self.dispatcher.models_changed()
        if self.strategies is not None:
            self.strategies.models_changed()

    def _engine_figures(self) -> EngineFigures:
        # While it loads, nobody knows what is in it already, and no run is done for those who wait.
        beat, up = self.supervisor.heartbeat, self.supervisor.lifecycle.phase is Phase.UP
        return EngineFigures(
            pid=self.supervisor.pid,
            spare_pid=self.supervisor.spare_pid,
            planned_bytes=self.relief.engine_bytes() if up else None,
            runs=beat.steps if beat else None,
            kv_bytes=self.dispatcher.kv_resident_bytes(),
            busy=up and bool(self.dispatcher.running or self.dispatcher.waiting),
        )

    def loaded_at_start(self) -> list[ModelDescription]:
        return [plan.description for plan in self._start]

    def metrics(self) -> Metrics:
        """Instruments that read this service's numbers when they are asked."""
        return metrics_of(self)

    async def simulate(self) -> None:
        """Let the simulated board live by what the engine does, and slow the engine down as that board would."""
        # Nobody else waits for it to be imported.
        from magnitude.simulate.live import SOURCE, cost_of

        assert self.simulated is not None, "asked only where there is one"

        def cost(work: PresentWork) -> ModelCost | None:
            # At rest the default model stands for the one that will be asked for.
            name = work.model or next((model.name for model in self.loaded_at_start()), "")
            plan = self.dispatcher.models_served.by_name.get(name)
            return cost_of(plan.description, work.past_tokens) if plan is not None else None

        await self.simulated.run(
            self.dispatcher.work,
            cost,
            duty=lambda: self.pace.without(SOURCE),
            pace=lambda shares: self.pace.set(SOURCE, shares.prefill, shares.decode),
        )

    async def stop(self) -> None:
        """End the engine and give the KV memory back."""
        if self.stopping.status in (EXIT_MEMORY, EXIT_ENGINE_BUDGET_SPENT):
            # What the next service would take over may be the very reason for its start.
            self._kept.give_up()
        await self.board.close()
        self.dispatcher.conversations.stop_saving()
        await self.supervisor.stop()
        if self.strategies is not None:
            await self.strategies.close()
        await self.relief.close()
        await self.switch.close()
        await self.dispatcher.close()
        await asyncio.to_thread(self.recorder.stop)

    def request_exit(self, status: int, reason: str) -> None:
        """Stop in order and leave with `status`, one of `supervise.exit_status`."""
        self.stopping.ask(reason, status)

    # --- what the supervisor tells ---

    async def _load(self, link: EngineLink) -> ModelsReady | LoadFailed:
        await self.switch.settled()
        # Where requests wait to go on, what they need comes first; the other models follow while they do.
        at_start = {plan.description.name for plan in self._start}
        self._first = self.dispatcher.begun_models() or at_start
        outcome = await self.loader.load_all(link, only=self._first)
        if isinstance(outcome, LoadFailed) and self._first != at_start:
            self._first = at_start  # one model's trouble is not the others'
            outcome = await self.loader.load_all(link, only=self._first)
        return outcome

    def _free_bytes(self) -> int:
        return effective_memory(self._roots).headroom_bytes

    async def _warm_up(self, link: EngineLink) -> None:
        """Load what every engine loads first into a spare one, as far as there is memory for all of it twice."""
        needed_bytes = sum(need_of(plan).weight_bytes for plan in self._start)
        if self._free_bytes() > SPARE_HEADROOM_BYTES + needed_bytes:
            await self.loader.preload(link, self._start)
        else:
            log.info(
                "spare engine without models: not enough memory", extra={"fields": {"needed_bytes": needed_bytes}}
            )

    async def _admit(self, plan: ModelPlan, graph_file: str, engine: FreshEngine) -> MagnitudeError | None:
        hello = self.supervisor.hello
        ort_version = hello.ort_version if hello else ""
        features = (*self._cpu.features, *computed_by(graph_file))
        failure = await self._golden.admit(
            plan, engine, graph_file=graph_file, ort_version=ort_version, cpu_features=features
        )
        if failure is None and plan.description.variant_of:
            plan.outside = await self._variants.check(plan, engine, ort_version=ort_version, cpu_features=features)
        if failure is None:
            await self._throughput.measure(plan, engine, ort_version=ort_version, cpu_features=features)
        if failure is None and plan.description.name not in self._warm:
            failure = await warm_up(plan, engine)
            # Only once: an engine that replaces another one must serve as soon as it can.
            self._warm.add(plan.description.name)
        return failure

    def _on_message(self, message: ToService) -> None:
        if isinstance(message, Tokens):
            self.feedback.generated_tokens += len(message.ids)
        if isinstance(message, Steps):
            self.feedback.runs.add(message)
            self.recorder.failures.runs(message)
            if self.strategies is not None:
                self.strategies.runs(message.groups)
        elif not self.loader.on_message(message):
            self.dispatcher.on_message(message)

    def _on_beat(self, heartbeat: Heartbeat) -> None:
        self.recorder.beat(heartbeat)
        self.counters.beat(heartbeat)

    def _on_up(self, link: EngineLink) -> None:
        self.pace.engine_up(link)  # before the first request
        self.dispatcher.engine_up(link)
        plans = {plan.description.name: plan for plan in self.dispatcher.plans()}
        failed = {name: str(plans[name].failure) for name in self._first if plans[name].failure}
        loaded = [name for name in self._first if name not in failed]
        later = [name for plan in self._start if (name := plan.description.name) not in self._first]
        self.switch.engine_up(link, loaded, failed, later=later)
        if self.strategies is not None:
            self.strategies.engine_up(link)
        self.recorder.engine_up()

    def _on_down(self, loss: EngineLoss) -> None:
        self.pace.engine_down()
        self.counters.engine_gone()
        self.switch.engine_down()
        if self.strategies is not None:
            self.strategies.engine_down(loss)
        self.dispatcher.engine_down(loss)

    def _facts_of(self, model: str) -> PlanFacts | None:
        plan = self.dispatcher.models_served.by_name.get(model)
        if plan is None:
            return None
        hello = self.supervisor.hello
        board = board_name_of(self.profile, simulated=self.simulated is not None)
        return facts_of(plan, board=board, ort_version=hello.ort_version if hello is not None else "")

    def _storage_off(self) -> list[str]:
        """What should outlast a restart and is not kept, a reason each."""
        learned_off = self.strategies.keeper.off if self.strategies is not None else ""
        gates = (self._golden.off, self._variants.off)
        stores = (*gates, self._throughput.off, self._files.off, learned_off)
        return [reason for reason in (*stores, *self.recorder.storage_off()) if reason]

    async def _leaving(self, model: str) -> None:
        self.texts.forget(self.dispatcher.model(model))
        await self.dispatcher.conversations.leave(model)

    def _on_failed(self, reason: str) -> None:
        self.dispatcher.refuse_all(
            EngineNotReady(f"the engine cannot serve: {reason}", hint="See 'magnitude doctor', then restart")
        )
