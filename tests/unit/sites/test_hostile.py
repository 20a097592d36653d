"""What people do to networks, and what they call with: each is discovered, or refused in one line that says why."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import timestepper
from timestepper.errors import AlreadyAttachedError, MismatchError, NoSitesError, TimestepperError, WrappedModelError
from timestepper.sites import blocks

WIDTH = 8
EXAMPLE = torch.randn(2, 5, WIDTH)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def branch(self, x):
        return self.last(torch.relu(self.first(self.norm(x))))

    def forward(self, x):
        return x + self.branch(x)


class Named(Block):
    def forward(self, x):
        return torch.add(input=x, other=self.branch(x))


class Scaled(Block):
    def forward(self, x):
        return x.add(other=self.branch(x), alpha=0.5)


class Sometimes(nn.Module):
    """Blocks that run by chance."""

    def __init__(self, chance):
        super().__init__()
        self.blocks, self.chance = nn.ModuleList(Block() for _ in range(8)), chance

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.chance() < 0.5 else x
        return x


class Told(nn.Module):
    """Gives what the user makes of its output."""

    def __init__(self, made):
        super().__init__()
        self.blocks, self.made = nn.Sequential(Block(), Block()), made

    def forward(self, x):
        return self.made(self.blocks(x))


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    count: int = 1


def spectral():
    net = nn.Sequential(Block(), Block())
    parametrizations.spectral_norm(net[0].first)  # whose iterates move with every forward in train mode
    return net


def low_rank():
    peft = pytest.importorskip("peft")
    net = Told(lambda x: x)
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["last"], r=2, init_lora_weights=False), net)
    return net


class Precisions(Block):
    """Multiplies with a tensor that it does not own."""

    def forward(self, x):
        return super().forward(x @ torch.eye(WIDTH))


TAKEN = {
    "two precisions": lambda: nn.Sequential(Precisions(), Precisions()),
    "keywords": lambda: nn.Sequential(Named(), Named()),
    "a factor": lambda: nn.Sequential(Scaled(), Scaled()),
    "spectral norm": spectral,
    "LoRA at the end": low_rank,
    "a dataclass": lambda: Told(Output),
    "a dictionary": lambda: Told(lambda x: {"logits": x, "none": None}),
    "no output": lambda: Told(lambda x: None),
}


@pytest.mark.parametrize("case", TAKEN)
def test_both_sites_are_found(case):
    found = timestepper.discover(TAKEN[case](), EXAMPLE)
    assert len(found.errors) == 2, found
    assert found.share == 1, found


@pytest.mark.parametrize("case", ["keywords", "a factor", "LoRA at the end"])
def test_they_are_attached_and_folded(case, attach_and_fold):
    attach_and_fold(TAKEN[case](), EXAMPLE)


@pytest.mark.parametrize("chance", [lambda: torch.rand(()).item(), random.random, lambda: np.random.rand()])
def test_blocks_that_run_by_chance_run_alike_in_every_run(chance):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    net = Sometimes(chance)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        after = torch.get_rng_state()
        assert timestepper.discover(net, EXAMPLE).errors
        assert torch.equal(torch.get_rng_state(), after)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="a GPU is in use already")
def test_gpus_that_are_used_later_are_neither_touched_nor_seeded():
    """Their seed waits until then: a second one would take its place. And who forks may not have begun to use one."""
    torch.manual_seed(1)
    waiting = list(torch.cuda._lazy_seed_tracker.call_order)
    assert timestepper.discover(Sometimes(lambda: torch.rand(()).item()), EXAMPLE).errors
    assert torch.cuda._lazy_seed_tracker.call_order == waiting
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("example", [torch.full_like(EXAMPLE, torch.nan), EXAMPLE[:0]])
def test_an_example_that_proves_nothing_is_refused(example):
    with pytest.raises(NoSitesError, match="zero, infinite or empty on the example, which proves nothing"):
        timestepper.attach(nn.Sequential(Block(), Block()), example=example)


def test_weights_that_are_no_numbers_are_told_as_such():
    net = nn.Sequential(Block(), Block())
    nn.init.constant_(net[1].last.bias, torch.inf)
    found = timestepper.discover(net, EXAMPLE)
    assert str(found).count("proves nothing; pass another, or mend the weights: 1.last.bias holds NaN or infinity") == 1


def test_an_example_without_numbers_is_told_as_such():
    with pytest.raises(MismatchError, match=r"^Sequential fails on an example of .*Cannot copy out of meta tensor"):
        timestepper.discover(nn.Sequential(Block()), EXAMPLE.to("meta"))


def test_sums_of_one_reason_are_one_line():
    net = Told(lambda x: sum(torch.tanh(x[..., :4] * n) for n in range(5)))
    assert "neither of which is a shortcut (4 sums)" in str(timestepper.discover(net, EXAMPLE))


def test_an_example_may_be_a_part_of_a_graph():
    example = 2 * EXAMPLE.clone().requires_grad_()
    assert len(timestepper.discover(nn.Sequential(Block()), example).errors) == 1


class Written(Block):
    """Cannot be trained."""

    def forward(self, x):
        return torch.add(x, self.branch(x), out=torch.empty_like(x))


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.controllers = Block()

    def forward(self, x):
        return self.controllers(x)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.LazyLinear(WIDTH)

    def forward(self, x):
        return x + self.last(torch.relu(x))


def attached():
    return nn.Sequential(timestepper.attach(nn.Sequential(Block()), example=EXAMPLE))


def quantised():
    net = nn.Sequential(Block())
    net[0].first.weight = nn.Parameter(net[0].first.weight.to(torch.float8_e4m3fn), requires_grad=False)
    return net


def scripted():
    return nn.Sequential(Block(), torch.jit.script(nn.Linear(WIDTH, WIDTH)))


REFUSED = {
    "attached": (attached, AlreadyAttachedError, "0 has controllers already"),
    "a part of that name": (Owner, AlreadyAttachedError, "Owner has a part or attribute named 'controllers'"),
    "a class": (lambda: Block, NoSitesError, "a network is needed, not <class"),
    "TorchScript": (lambda: torch.jit.trace(Block(), EXAMPLE), WrappedModelError, "Block is TorchScript"),
    "a scripted part": (scripted, MismatchError, "^1 is TorchScript, which nobody can look into; put the Python"),
    "meta": (lambda: nn.Sequential(Block()).to("meta"), MismatchError, "0.norm.weight is on the meta device"),
    "lazy": (Lazy, MismatchError, "last.weight has no shape yet; call the network once"),
    "float8": (quantised, MismatchError, "0.first.weight is torch.float8_e4m3fn.* attach before quantising"),
    "out=": (lambda: nn.Sequential(Written()), MismatchError, "in 0: .*don't support automatic differentiation"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's about TorchScript
@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_discover_in_one_line(case):
    make, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as raised:
        timestepper.discover(make(), EXAMPLE)
    assert isinstance(raised.value, TimestepperError)
    assert "\n" not in str(raised.value)


def test_what_was_discovered_on_a_cpu_is_attached_on_the_meta_device():
    net = nn.Sequential(Block(), Block())
    found = timestepper.discover(net, EXAMPLE)
    timestepper.attach(net.to("meta"), sites=found)
    assert all(parameter.is_meta for parameter in net.parameters())


def test_an_adapter_of_low_rank_is_no_residual():
    refused = timestepper.discover(low_rank(), EXAMPLE).refused
    assert {sum_.path for sum_ in refused} == {"blocks.0.last", "blocks.1.last"}
    assert all("of low rank" in sum_.reason and not sum_.residual for sum_ in refused)


class Coarse(Block):
    """A branch in bfloat16, whatever the network is in."""

    def __init__(self):
        super().__init__()
        self.first.bfloat16()
        self.last.bfloat16()

    def branch(self, x):
        return self.last(torch.relu(self.first(self.norm(x).bfloat16()))).float()


def large_numbers():
    transformers = pytest.importorskip("transformers")  # whose masks begin at the least float32
    sizes = {"d_model": 16, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2}
    return transformers.XGLMModel(transformers.XGLMConfig(vocab_size=50, **sizes))


@pytest.mark.parametrize(
    ("make", "example", "where"),
    [
        (lambda: nn.Sequential(Coarse(), Coarse()), EXAMPLE, ": RuntimeError: mat1 and mat2 must have the same dtype"),
        (large_numbers, None, " in layers.0.self_attn: RuntimeError: value cannot be converted to type float"),
    ],
)
def test_a_network_that_has_but_one_precision_is_told_as_such(make, example, where):
    with pytest.raises(MismatchError, match=r"hand \(docs/adapters.md\)$") as error:
        timestepper.discover(make(), example)
    said = "runs in its own precision, but as a copy in float64 or float32, on which sites are proved, it fails"
    assert said + where in str(error.value)
    assert "example" not in str(error.value)


class Picky(Block):
    """Takes only what has passed the block before."""

    def forward(self, x):
        if x.dtype == torch.float64:
            raise TypeError("only in single precision")
        return super().forward(x)


def test_a_block_that_fails_by_itself_leaves_the_others(monkeypatch):
    monkeypatch.setattr(blocks, "LARGE", 0)
    found = timestepper.discover(nn.Sequential(Block(), Picky(), Block()), EXAMPLE)
    assert set(found.errors) == {"0", "2"}
    (refused,) = found.refused
    assert "its block 1 cannot be proved by itself" in refused.reason
    assert "only in single precision" in refused.reason
