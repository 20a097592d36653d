import pytest


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """A folder with the set of runs that the tests' module writes down as ``SET``."""
    path = tmp_path_factory.mktemp("mini")
    (path / "mini.toml").write_text(request.module.SET)
    return path
