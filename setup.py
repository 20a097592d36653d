"""Recipes and claims are data at the top of the checkout; an installed package carries them inside."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithData(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # an editable install reads the checkout
            for folder in ("recipes", "claims"):
                self.copy_tree(folder, str(Path(self.build_lib) / "timestepper" / folder))


setup(cmdclass={"build_py": WithData})
