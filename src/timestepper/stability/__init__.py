"""The paper's theory as tools for real networks: bound, measured growth, Euler condition, gradients, robustness.

chain = open_chain(net, images)      plain, attached or folded; with its step sizes, or steps=False for without
proposition_1(chain).log             how much a perturbation can grow, at most
measured_growth(chain, "power")      how much it does grow
euler_condition(chain)               max |1 + h lambda| of every block
gradient_shares(chain, labels)       what the branches give to every gradient
analyse(net, images, labels)         all of these as plain data
"""

from timestepper.stability import robustness
from timestepper.stability.analysis import analyse
from timestepper.stability.attacks import Pixels
from timestepper.stability.bound import BlockBound, Bound, proposition_1
from timestepper.stability.chain import Chain, open_chain
from timestepper.stability.euler import EulerBlock, euler_condition
from timestepper.stability.gradients import GradientShare, gradient_shares
from timestepper.stability.monitor import Monitor
from timestepper.stability.ode import figure_1
from timestepper.stability.perturbation import Growth, measured_growth
from timestepper.stability.plots import plot_depth

__all__ = ["BlockBound", "Bound", "Chain", "EulerBlock", "GradientShare", "Growth", "Monitor", "Pixels", "analyse"]
__all__ += ["euler_condition", "figure_1", "gradient_shares", "measured_growth", "open_chain", "plot_depth"]
__all__ += ["proposition_1", "robustness"]
