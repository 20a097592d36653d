"""The Euler condition (Eq. 4) of every block: max |1 + h lambda_i(J)| <= 1 over the Jacobian of its branch.

The step sizes are in the branch's weights, so the Jacobian below is diag(dt) J and h is 1. Channel-wise step sizes
need no other treatment.
"""

import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from timestepper.equations import euler_radius
from timestepper.stability.chain import Chain, Link, branch_end, full_precision

TOLERANCE = 1e-4  # of Arnoldi's eigenvalues, relative


@dataclass(frozen=True)
class EulerBlock:
    """Eigenvalues of diag(dt) J with the largest |1 + lambda|, at the features of one sample.

    ``skipped`` says why there are none, as where a block changes the size of its features. ``converged`` is False
    where Arnoldi gave up on some; ``radius`` is then that of those found, and the true one may be larger.
    """

    stage: str
    path: str
    eigenvalues: tuple[complex, ...] = ()
    radius: float | None = None
    converged: bool = True
    skipped: str | None = None

    @property
    def stable(self) -> bool | None:
        """Eq. 4 within Arnoldi's tolerance: a unit that ReLU keeps at zero has |1 + 0| = 1 exactly. None: not known."""
        if self.radius is None:
            return None
        if self.radius > 1 + TOLERANCE:
            return False
        return True if self.converged else None


@full_precision()
def euler_condition(chain: Chain, *, sample: int = 0, count: int = 6) -> list[EulerBlock]:
    """Eq. 4 for every block, on the features that one sample has there."""
    threads = torch.get_num_threads()
    # Thousands of tiny passes on a CPU gain nothing from a second thread, and on a busy machine wait for it.
    torch.set_num_threads(1 if chain.inputs.device.type == "cpu" else threads)
    try:
        pairs = zip(chain.links, pairwise(chain.features), strict=True)
        return [_block(link, *around, sample, count) for link, around in pairs]
    finally:
        torch.set_num_threads(threads)


def _block(link: Link, before: Tensor, after: Tensor, sample: int, count: int) -> EulerBlock:
    if before.shape != after.shape:
        skipped = f"{tuple(before.shape[1:])} to {tuple(after.shape[1:])}: no square Jacobian"
        return EulerBlock(link.stage, link.path, skipped=skipped)
    eigenvalues, converged = _extreme_eigenvalues(link, before[sample : sample + 1], count)
    if len(eigenvalues) == 0:
        return EulerBlock(link.stage, link.path, converged=False, skipped="Arnoldi found no eigenvalue")
    radius = euler_radius(1.0, torch.from_numpy(eigenvalues)).item()
    return EulerBlock(link.stage, link.path, tuple(map(complex, eigenvalues)), radius, converged)


def branch(link: Link, features: Tensor) -> Tensor:
    """What the block's branch adds to the shortcut, step sizes included."""
    outputs: list[Tensor] = []
    # A copy: many blocks add the shortcut in place.
    with branch_end(link).register_forward_hook(lambda module, args, output: outputs.append(output.clone())):
        link.block(features.clone())
    return outputs[0]


def _extreme_eigenvalues(link: Link, features: Tensor, count: int) -> tuple[np.ndarray, bool]:
    """Arnoldi on v -> v + J^T v; a matrix and its transpose have the same eigenvalues, and one backward gives J^T v."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

    at = features.detach().clone().requires_grad_()
    output = branch(link, at)
    size = at.numel()

    def product(vector: np.ndarray) -> np.ndarray:
        cotangent = torch.from_numpy(np.ascontiguousarray(vector)).to(output).reshape(output.shape)
        (pulled,) = torch.autograd.grad(output, at, cotangent, retain_graph=True)
        return (cotangent + pulled).reshape(-1).double().cpu().numpy()

    if size <= 4 * count:  # too small for Arnoldi
        return _sorted(np.linalg.eigvals(np.stack([product(row) for row in np.eye(size)])))[:count] - 1, True
    start = np.random.default_rng(0).standard_normal(size)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _sorted(eigs(operator, count, v0=start, tol=TOLERANCE, return_eigenvectors=False)) - 1, True
        except ArpackNoConvergence as error:
            return _sorted(error.eigenvalues) - 1, False


def _sorted(eigenvalues: np.ndarray) -> np.ndarray:
    return eigenvalues[np.argsort(-np.abs(eigenvalues))].astype(complex)
