"""A network that is itself a container: what is done to it is done to its layers, as to the plain one."""

import pytest
import torch
from torch import nn

import timestepper
from timestepper.errors import MismatchError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class Chain(nn.ModuleList):
    def forward(self, x):
        for part in self:
            x = part(x)
        return x


class Named(nn.ModuleDict):
    def forward(self, x):
        for part in self.values():
            x = part(x)
        return x


def pair(kind) -> tuple[nn.Module, nn.Module]:
    """A plain container and an attached one, of the same layers."""
    parts = [Block(), Block(), nn.Dropout(0.1), nn.Linear(8, 8)]
    if kind is nn.Sequential:
        plain, net = kind(*parts), kind(*parts)
    else:
        given = dict(zip("abcd", parts, strict=True)) if kind is Named else parts
        plain, net = kind(given), kind(given)
    return plain, timestepper.attach(net, example=torch.randn(2, 8))


def pop(net):
    return net.pop(-1)


def set_last(net):
    net[-1] = EXTRA


def set_first_of_the_head(net):
    net[2] = EXTRA


def delete_last(net):
    del net[-1]


def delete_slice(net):
    del net[2:]


def insert(net):
    net.insert(3, EXTRA)


def insert_in_front(net):
    net.insert(0, EXTRA)


def append(net):
    return net.append(EXTRA) is net


def extend(net):
    return net.extend([EXTRA, MORE]) is net


def add(net):
    was = net
    net += nn.Sequential(EXTRA)
    return net is was


def out_of_range(net):
    with pytest.raises(IndexError):
        net[4] = EXTRA
    with pytest.raises(IndexError):
        del net[-5]


EXTRA, MORE = nn.Linear(8, 8), nn.Linear(8, 8)
AT_THE_END = [
    pop,
    set_last,
    set_first_of_the_head,
    delete_last,
    delete_slice,
    insert,
    append,
    extend,
    add,
    out_of_range,
]


@pytest.mark.parametrize("kind", [nn.Sequential, Chain])
@pytest.mark.parametrize("edit", AT_THE_END)
def test_an_edit_does_what_it_does_to_the_plain_container(kind, edit):
    plain, net = pair(kind)
    assert edit(net) == edit(plain)
    assert [name for name, _ in net.named_children()] == ["controllers", *(name for name, _ in plain.named_children())]
    assert list(net) == list(plain)
    assert len(net) == len(plain) == len(net[:])
    for index in range(-len(plain), len(plain)):
        assert net[index] is plain[index]
    x = torch.randn(2, 8)
    assert torch.equal(net.eval()(x), timestepper.fold(net)(x))
    assert type(timestepper.detach(net)) is kind
    assert list(net.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("kind", [nn.Sequential, Chain])
def test_an_edit_that_moves_a_site_is_refused_by_name_and_detach_leaves_it_as_edited(kind):
    plain, net = pair(kind)
    insert_in_front(net), insert_in_front(plain)
    assert list(net) == list(plain)
    with pytest.raises(MismatchError, match=r"^0 was replaced by Linear since attach"):
        net(torch.randn(2, 8))
    assert list(timestepper.detach(net)) == list(plain)
    assert torch.equal(net.eval()(torch.ones(2, 8)), nn.Sequential(*plain).eval()(torch.ones(2, 8)))


def test_a_site_that_is_removed_is_named():
    _, net = pair(Named)
    del net["b"]
    with pytest.raises(MismatchError, match=r"^b was removed since attach"):
        net(torch.randn(2, 8))
    assert list(timestepper.detach(net)) == ["a", "c", "d"]


def test_a_dictionary_is_edited_like_the_plain_one():
    plain, net = pair(Named)
    for each in (net, plain):
        each["e"] = EXTRA
        assert each.pop("c") is not None
        each.update({"d": EXTRA})
        assert list(each) == list(each.keys()) == ["a", "b", "d", "e"]
        assert each.keys() & {"a", "controllers"} == {"a"}
        assert "controllers" not in each
        assert "a" in each
    assert list(net.values()) == list(plain.values())
    assert next(net.named_children())[0] == "controllers"
    owned = net.controllers
    with pytest.raises(MismatchError, match="'controllers' is the name of what attach has put in"):
        net["controllers"] = EXTRA
    assert net.controllers is owned
    x = torch.randn(2, 8)
    assert torch.equal(net.eval()(x), timestepper.fold(net)(x))
