"""The command line, the pictures and the plain data behind them."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from timestepper.cli import app
from timestepper.cli.gather import rich_table
from timestepper.cli.stability_tables import as_json, block_table
from timestepper.errors import CheckpointError, StabilityError, UnknownNameError
from timestepper.models import CifarResNet
from timestepper.stability import analyse, plot_depth
from timestepper.tensors import write_tensors

PNG = b"\x89PNG"


def run(*arguments):
    result = CliRunner().invoke(app, ["stability", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_json_of_a_model_by_name(tmp_path):
    picture = tmp_path / "depth.png"
    output = run(
        "cifar/resnet8", "--controller", "lstm", "--input-size", 8, "--samples", 2, "--plot", picture, "--json"
    )
    found = json.loads(output, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["inputs"] == [2, 3, 8, 8]
    assert [block["path"] for block in found["blocks"]] == ["layer1.0", "layer2.0", "layer3.0"]
    assert found["bound"]["log"] < found["bound_without_steps"]["log"]
    assert found["growth"]["power"]["end_to_end"] > found["growth"]["random"]["end_to_end"]
    assert found["blocks"][0]["step_size"]["mean"] == pytest.approx(0.5, abs=0.05)
    assert found["blocks"][1]["euler_radius"] is None
    assert picture.read_bytes().startswith(PNG)


def test_what_is_not_finite_is_null_in_json():
    figures = {"growth": {"power": {"end_to_end": float("inf")}}, "blocks": [{"log": float("nan"), "branch": 1.5}]}
    found = json.loads(as_json(figures))
    assert found == {"growth": {"power": {"end_to_end": None}}, "blocks": [{"log": None, "branch": 1.5}]}


def test_tables_of_a_network_with_saved_weights(tmp_path):
    weights = write_tensors(CifarResNet(8, in_chans=1).state_dict(), tmp_path / "w.safetensors")
    output = run(
        "cifar/resnet8",
        "--weights",
        weights,
        "--data",
        "digits",
        "--noise",
        "--attacks",
        "--corruptions",
        "--images",
        30,
    )
    for text in ("layer3.0", "certainly below", "deviation 0.5", "pgd 8/255", "impulse_noise 5", "no eigenvalues"):
        assert text in output
    assert " 30 " in output


def test_a_run_directory_brings_its_network_and_its_data(tmp_path, cli):
    assert cli("train", "smoke/digits-lstm", "run.epochs=1", "--run-dir", str(tmp_path / "run")).code == 0
    found = json.loads(run(tmp_path / "run", "--samples", 4, "--noise", "--json"))
    assert found["inputs"] == [4, 1, 8, 8]
    assert "bound_without_steps" in found
    assert found["noise"][0]["draws"][0]["samples"] == 360


def test_networks_without_residual_blocks_have_the_robustness_figures():
    output = run("cifar/densenet22", "--no-theory", "--data", "digits", "--noise", "--images", 20, "--json")
    assert "blocks" not in json.loads(output)
    with pytest.raises(StabilityError, match="--no-theory"):
        run("cifar/densenet22", "--data", "digits", "--noise")
    with pytest.raises(StabilityError, match=r"^VisionTransformer has no block that the theory covers; .*--noise\)$"):
        run("timm/test_vit", "--no-bound", "--input-size", 160)


@pytest.mark.parametrize("width", [80, 140])
def test_names_and_figures_are_whole_in_a_narrow_terminal(stepped, digits, width):
    found = {"name": "stepped"} | analyse(stepped, digits.test[0][:2])
    console = Console(width=width)
    with console.capture() as capture:
        console.print(rich_table(block_table(found)))
    assert all(block["path"] in capture.get() for block in found["blocks"])
    assert f"{found['blocks'][0]['step_size']['mean']:.3g}" in capture.get()
    assert "…" not in capture.get()


def test_a_pipe_is_wide_enough_for_the_table():
    assert "layer1.0" in run("cifar/resnet8", "--controller", "lstm", "--input-size", 8)


def test_figure_1():
    rows = json.loads(run("figure1", "--json"))
    assert rows["RKF, Tol = 0.001"]["steps"] < rows["Euler, h = 0.02"]["steps"] / 4
    assert rows["Euler, h = 0.6"]["error"] > 1
    assert "rejected" in run("figure1")


def test_a_picture_without_step_sizes_and_without_a_bound(tmp_path, plain, digits):
    found = analyse(plain, digits.test[0][:2], bound=False)
    plot_depth(tmp_path / "plain.png", found)
    assert (tmp_path / "plain.png").read_bytes().startswith(PNG)


def test_a_picture_hides_nothing(monkeypatch, plain, digits):
    """Blocks are counted in whole numbers from 1."""
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **_: drawn.append(figure))
    plot_depth("depth.png", analyse(plain, digits.test[0][:2], bound=False))
    axes = drawn[0].axes[0]
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_mistakes(tmp_path):
    with pytest.raises(StabilityError, match="need test images; give --data"):
        run("cifar/resnet8", "--noise", "--input-size", 8)
    with pytest.raises(StabilityError, match=r"layer1\.0\.se.*--no-bound") as error:
        run("timm/seresnet18", "--input-size", 32)
    assert "\n" not in str(error.value)
    with pytest.raises(StabilityError, match=r"x\.odd: no picture has such a name; give a \.png, \.svg or \.pdf file"):
        run("cifar/resnet8", "--input-size", 8, "--plot", tmp_path / "no" / "x.odd")
    assert not (tmp_path / "no").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StabilityError, match=r"x\.png cannot be written: .*; name a file elsewhere"):
        run("cifar/resnet8", "--input-size", 8, "--plot", tmp_path / "file" / "x.png")
    run("cifar/resnet8", "--input-size", 8, "--plot", tmp_path / "new" / "x.png")
    assert (tmp_path / "new" / "x.png").is_file()
    with pytest.raises(StabilityError, match="--plot draws what --no-theory leaves out"):
        run("cifar/densenet22", "--no-theory", "--plot", tmp_path / "x.png")
    with pytest.raises(StabilityError, match="nothing to compute; add --noise, --attacks or --corruptions"):
        run("cifar/resnet8", "--no-theory")
    with pytest.raises(
        StabilityError, match=r"figure1 has no network.*; leave --controller, --samples, --no-bound out"
    ):
        run("figure1", "--controller", "lstm", "--samples", 8, "--no-bound", "--json")
    with pytest.raises(
        UnknownNameError, match=r"unknown model 'nosuch/dir'; .*; there is no folder of that name either"
    ):
        run("nosuch/dir")
    with pytest.raises(StabilityError, match="is a run with its own network and data; leave --controller, --data out"):
        run(tmp_path, "--controller", "lstm", "--data", "digits")
    broken = tmp_path / "w.safetensors"
    broken.write_bytes(b"not weights")
    with pytest.raises(CheckpointError):
        run("cifar/resnet8", "--weights", broken)
