"""What surrounds a product: the norm before it and the gate behind it, against the contract in float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_driver import Command, Driver, command

ROUNDING = 2.0**-24
EPSILON = 1e-5


def norm_command(x: np.ndarray, gain: np.ndarray, epsilon: float = EPSILON) -> Command:
    return command(f"norm {len(x)} {epsilon:.9g}", x.tobytes(), gain.tobytes())


def gate_command(gates: np.ndarray, ups: np.ndarray) -> Command:
    return command(f"gate {len(gates)}", gates.tobytes(), ups.tobytes())


def rows_of(rng: np.random.Generator) -> list[Command]:
    """Norms and gates of odd lengths, with outliers, tiny numbers and numbers that are none."""
    found = []
    for length in (1, 7, 8, 9, 64, 577):
        x, gain = (rng.standard_normal(length).astype(np.float32) for _ in range(2))
        x[length // 2] = 1e6
        found += [norm_command(x, gain), norm_command(x * np.float32(1e-20), gain)]
        gates = (rng.standard_normal(length) * 10.0 ** rng.integers(-3, 3, length)).astype(np.float32)
        found.append(gate_command(gates, gain))
    return found


def on_each_path(driver: Driver, given: Command) -> dict[str, np.ndarray]:
    return {
        isa: np.frombuffer(driver.results([command(f"isa {isa}"), given])[1], np.float32) for isa in driver.isas()
    }


@pytest.mark.parametrize("length", [1, 5, 8, 33, 576, 4864])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6])
def test_a_norm_is_the_contract_within_rounding(host_driver: Driver, length: int, size: float) -> None:
    rng = np.random.default_rng(length)
    x = (rng.standard_normal(length) * size).astype(np.float32)
    gain = rng.standard_normal(length).astype(np.float32)
    exact = x.astype(np.float64)
    right = exact / np.sqrt(np.mean(exact**2) + EPSILON) * gain
    for isa, y in on_each_path(host_driver, norm_command(x, gain)).items():
        # The sum of squares has length/8 additions a lane; half of its error is the root's.
        assert (np.abs(y - right) <= (length / 16 + 8) * ROUNDING * np.abs(right) + 1e-38).all(), isa


def test_a_gate_is_the_contract_within_rounding(host_driver: Driver) -> None:
    rng = np.random.default_rng(9)
    gates = np.concatenate([np.linspace(-100, 100, 4001), rng.standard_normal(100), [0.0, -0.0, 1e-30, 3e38, -3e38]])
    gates = gates.astype(np.float32)
    ups = rng.standard_normal(len(gates)).astype(np.float32)
    exact = gates.astype(np.float64)
    with np.errstate(over="ignore"):
        right = exact / (1 + np.exp(-exact)) * ups
    for isa, y in on_each_path(host_driver, gate_command(gates, ups)).items():
        above = gates > -87
        # The argument of the power and log₂ e in it are rounded, each of which is 2⁻²⁴ · |gate| of its result.
        allowed = (6 + 2 * np.abs(np.minimum(exact, 0))) * ROUNDING * np.abs(right) + 1e-38
        assert (np.abs(y - right) <= allowed)[above].all(), isa
        assert (np.abs(y[~above]) <= np.abs(exact * ups)[~above] * 1e-37 + 1e-37).all(), isa


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_a_number_that_is_none_is_not_lost(host_driver: Driver, strange: float) -> None:
    x, ones = np.ones(20, np.float32), np.ones(20, np.float32)
    x[3] = strange
    for isa, y in on_each_path(host_driver, norm_command(x, ones)).items():
        assert np.isnan(y[3]), isa
    for isa, y in on_each_path(host_driver, gate_command(x, ones)).items():
        assert not np.isfinite(y[3]), isa
        assert np.isfinite(np.delete(y, 3)).all(), isa


def test_all_paths_give_the_same_bits(host_driver: Driver) -> None:
    commands = rows_of(np.random.default_rng(17))
    wanted = host_driver.results([command("isa reference"), *commands])[1:]
    for isa in host_driver.isas():
        assert host_driver.results([command(f"isa {isa}"), *commands])[1:] == wanted, isa
