"""The kernels compiled for a GPU, which needs none: what Triton's interpreter lets pass shows here."""

import pytest

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from timestepper.kernels import launch, ops
from timestepper.kernels import triton_controllers as controllers
from timestepper.kernels import triton_recurrence as recurrence

pytestmark = pytest.mark.skipif(ops.INTERPRETED, reason="interpreted kernels cannot be compiled")

TABLE, FLOATS, INTEGER = "*i64", "*fp32", "i32"
STATE = {"table": TABLE, "state": FLOATS}
WIDE = {"BLOCK_U": launch.UNITS, "HIDDEN": 128}
BACK = STATE | {"gradient": FLOATS}
CASES = {
    "lstm, narrow": (recurrence.lstm, STATE, {"HIDDEN": 16}, launch.FORWARD_WARPS[16]),
    "lstm": (recurrence.lstm, STATE, {"HIDDEN": 64}, launch.FORWARD_WARPS[64]),
    "lstm_backward": (recurrence.lstm_backward, BACK, {"HIDDEN": 64}, launch.BACKWARD_WARPS[64]),
    "lstm_site": (recurrence.lstm_site, STATE | {"site": INTEGER}, WIDE, 8),
    "lstm_site_backward": (recurrence.lstm_site_backward, BACK | {"step": INTEGER}, WIDE, 8),
    "weight_gradients": (
        controllers.weight_gradients,
        {"table": TABLE, "matrices": INTEGER}
        | dict.fromkeys(("described", "state", "state_gradients", "step_gradients", "out"), FLOATS),
        {"BLOCK_M": 16, "BLOCK_T": 16, "BLOCK_N": 32, "BLOCK_K": 64},
        4,
    ),
    "scale": (controllers.scale, {"table": TABLE, "steps": FLOATS, "out": FLOATS}, {"BLOCK": 128}, 4),
    "scale_backward": (
        controllers.scale_backward,
        {"table": TABLE} | dict.fromkeys(("steps", "gradient", "parameter_gradients", "step_gradients"), FLOATS),
        {"BLOCK": 128},
        4,
    ),
}


def compiled(name: str) -> dict[str, str]:
    kernel, arguments, constants, warps = CASES[name]
    source = ASTSource(kernel, arguments | dict.fromkeys(constants, "constexpr"), constants)
    return compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm


@pytest.mark.parametrize("name", CASES)
def test_kernel_compiles_for_a_gpu(name):
    assert "cubin" in compiled(name)


@pytest.mark.parametrize("name", ["lstm, narrow", "lstm", "lstm_site"])
def test_all_warps_have_read_the_gates_before_one_writes_over_them(name):
    """A few units on many threads: each is loaded by several warps and stored by one. Nothing else orders the two."""
    between = compiled(name)["ttir"].split("tt.store")[0].rpartition("tt.load")[2]
    assert "barrier" in between
