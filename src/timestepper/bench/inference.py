"""Is a folded network the plain network? Its graph node for node, its latency, its ONNX file."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from timestepper.bench.training import Case


class Inference:
    """Calls run one forward pass without gradients on one fixed batch."""

    def __init__(self, model: nn.Module, case: Case):
        self._case = case
        self.model = case.runtime.place(model.eval())
        self._images, _ = case.inputs()
        self._forward = case.runtime.graphed(self._run)
        for _ in range(5):  # compiles, and records a CUDA graph after a few ordinary calls
            self()

    def __call__(self) -> Tensor:
        return self._forward(self._images)

    @torch.no_grad()
    def _run(self, images: Tensor) -> Tensor:
        with self._case.runtime.autocast():
            return self.model(images)


def graph_nodes(model: nn.Module, images: Tensor) -> list[tuple[str, str, str, str]]:
    """The nodes of the exported graph: kind, target, arguments, shape and type of the result."""
    program = torch.export.export(model.eval(), (images,))
    return [
        (node.op, str(node.target), str((node.args, node.kwargs)), str(node.meta.get("val")))
        for node in program.graph.nodes
    ]


def graph_differences(model: nn.Module, other: nn.Module, images: Tensor) -> list[str]:
    """Where two exported graphs differ; empty where they are the same node for node."""
    mine, theirs = graph_nodes(model, images), graph_nodes(other, images)
    differences = [f"node {i}: {a} and {b}" for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b]
    if len(mine) != len(theirs):
        differences.append(f"{len(mine)} and {len(theirs)} nodes")
    return differences


def onnx_bytes(model: nn.Module, images: Tensor) -> int:
    """Size of the ONNX file; ImportError where the exporter's packages are missing."""
    import onnxscript  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model.eval(), (images,), str(path), dynamo=True, external_data=False, verbose=False)
        return path.stat().st_size
